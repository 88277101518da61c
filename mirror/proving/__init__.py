"""Find out what of two sites can be compared, before it is compared."""
