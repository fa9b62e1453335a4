"""Clients of a chaos run beside crashkit's publishers: groups, and clients of Liftbridge's API."""
