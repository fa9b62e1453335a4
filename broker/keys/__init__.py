"""Key providers and the cipher: the only users of `cryptography` and of a key service."""
