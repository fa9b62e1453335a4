"""Servers started on this machine: one broker or three, NATS, their certificates."""
