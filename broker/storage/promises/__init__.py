"""Up to which offset records may have been acknowledged, noted in a second place."""
