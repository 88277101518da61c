"""Repair what a comparison has found, as far as it can be repaired."""
