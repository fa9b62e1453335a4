"""Stubs of Liftbridge's client API, whose protobuf package is ``proto``."""
