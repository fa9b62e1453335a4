"""Judges histories: what clients sent, heard and read, against what replicas and tables hold."""
