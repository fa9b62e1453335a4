"""Quick imports: the settings that they change are restored afterwards."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from broker.process.quick_imports import quick_imports


def test_the_collector_rests_meanwhile_only() -> None:
    """This holds within another such block, and after an error."""
    assert gc.isenabled()
    with quick_imports():
        assert not gc.isenabled()
        with quick_imports():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), quick_imports():
        raise KeyError
    assert gc.isenabled()


def test_no_child_sees_the_setting_of_linear_algebra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that the user chose is kept."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with quick_imports():
        assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    assert "OPENBLAS_NUM_THREADS" not in os.environ

    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4")
    with quick_imports():
        assert os.environ["OPENBLAS_NUM_THREADS"] == "4"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "4"


def test_a_broker_is_loaded_without_rich() -> None:
    """The command loads nothing of it before a broker serves; what asks for it later has it."""
    script = (
        "import sys, broker.__main__; "
        "from broker.process.quick_imports import import_structlog; import_structlog(); "
        "from broker.process import daemon, logging; "
        "assert 'rich' not in sys.modules, 'loaded'; "
        "logging.configure_logging(format='console'); "
        "import rich.console, structlog\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: structlog.get_logger().exception('it failed')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ZeroDivisionError: division by zero" in done.stdout + done.stderr
