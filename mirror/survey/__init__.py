"""Find out what a link carries, and what it has to carry, before anything is copied over it."""
