"""Messages of NATS, and publishers' sessions."""
