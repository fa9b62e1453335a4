"""Protobuf stubs generated from ``proto/`` by ``make protos``; no hand-written code lives here."""
