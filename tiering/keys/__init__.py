"""Key snapshots: the newest record of each key."""
