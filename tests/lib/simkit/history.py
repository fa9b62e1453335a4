"""The words of full reads under their old address, for who has not moved to checkkit yet."""

from checkkit.anomalies import Verdict
from checkkit.readings import PartReading, Reading, Row

__all__ = ["PartReading", "Reading", "Row", "Verdict"]
