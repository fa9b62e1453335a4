"""The NATS connection, and what replicas say over it."""
