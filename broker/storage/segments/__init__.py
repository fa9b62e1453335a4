"""One segment: its file, its index, and damage in it."""
