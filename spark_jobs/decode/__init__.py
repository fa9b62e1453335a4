"""Payload decoders: Arrow rows of a stream in, decoded and rejected Arrow rows out."""
