"""One room per outside world: disk, NATS, Arrow Flight, HTTP, other brokers."""
