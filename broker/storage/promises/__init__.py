"""What a broker has promised about its logs, in a second place."""
