"""The entries of all decoders, a module for each room that bytes come from."""
