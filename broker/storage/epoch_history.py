"""The epoch history under the name that the storage room knows it by; it is a plain value."""

from __future__ import annotations

from broker.model.epoch_history import EpochHistory

__all__ = ["EpochHistory"]
