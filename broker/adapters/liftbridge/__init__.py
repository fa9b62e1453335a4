"""Liftbridge's client API, served over gRPC."""
