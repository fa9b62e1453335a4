"""The connections between brokers, with a lane (priority class) for each kind of message."""
