"""The links between brokers: one connection of a pair, with a lane for each kind of message."""
