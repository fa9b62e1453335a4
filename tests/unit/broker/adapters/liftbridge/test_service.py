"""A service that cannot listen is refused at its start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.adapters.clock import SystemClock
from broker.adapters.liftbridge.config import LiftbridgeServiceConfig
from broker.adapters.liftbridge.service import LiftbridgeService
from broker.errors import InvalidConfigError


def test_a_host_that_no_name_can_be_is_refused() -> None:
    """Python raises UnicodeError for it, which is not an OSError."""
    broker = cast("Any", SimpleNamespace(groups=None))
    config = LiftbridgeServiceConfig(host="a..b", port=0)
    service = LiftbridgeService(broker, SystemClock(), config)
    with pytest.raises(InvalidConfigError, match=r"a\.\.b:0"):
        service.start()
