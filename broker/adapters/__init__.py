"""One folder per outside system: disk, NATS, Arrow Flight, HTTP, other brokers."""
