"""What `make quick` runs, and how."""
