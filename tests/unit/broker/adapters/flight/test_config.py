"""Combinations of settings that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from broker.adapters.flight.config import MIB, FlightServiceConfig
from broker.errors import InvalidConfigError


@pytest.mark.parametrize(
    "values",
    [
        {"tls_cert": b"x"},
        {"tls_key": b"x"},
        {"tls_client_ca": b"x"},
        {"port": -1},
        {"port": 65_536},
        {"streams_max": 0},
        {"idle_check_ms": 0},
        {"put_batch_bytes_max": 65 * MIB},
    ],
)
def test_contradictions_are_refused(values: dict[str, Any]) -> None:
    """A configuration that cannot work is refused when it is read, not when it is used."""
    with pytest.raises(InvalidConfigError):
        FlightServiceConfig(**values)
