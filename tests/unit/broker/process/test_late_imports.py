"""What a broker of the default configuration does not import."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def imported() -> frozenset[str]:
    """The modules of a fresh process that has imported the daemon, which takes it a second."""
    program = "import sys, broker.process.daemon; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return frozenset(done.stdout.split())


def test_a_broker_without_liftbridge_does_not_import_http2(imported: frozenset[str]) -> None:
    """The API of Liftbridge is off by default, and HTTP/2 is 30 ms of a start."""
    assert not imported & {"h2", "broker.adapters.liftbridge.service"}
    assert "broker.process.daemon" in imported


def test_pysyncobj_is_loaded_by_choice_alone(imported: frozenset[str]) -> None:
    """The library, and the adapter around it, are no part of a broker that did not choose them."""
    assert not [name for name in imported if "pysyncobj" in name]
