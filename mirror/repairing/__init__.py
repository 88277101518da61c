"""Carry out what can be done about what a comparison has found."""
