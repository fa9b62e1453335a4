"""The file system."""
