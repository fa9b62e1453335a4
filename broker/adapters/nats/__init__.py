"""The NATS connection, and messages between replicas over NATS."""
