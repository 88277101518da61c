"""The relay: it runs next to the source, and lets mirrors at the other end of a slow link read the source."""
