"""The check of one full read under its old address, for who has not moved to checkkit yet."""

from checkkit.checker import check_reading

__all__ = ["check_reading"]
