"""Find out what can be compared between two sites, before it is compared."""
