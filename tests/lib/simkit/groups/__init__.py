"""A consumer group whose members and brokers fail."""
