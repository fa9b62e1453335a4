"""How far a broker has vouched for its logs, in a second place."""
