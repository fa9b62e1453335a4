"""Quick imports: the settings that they change are restored afterwards."""

from __future__ import annotations

import gc
import os

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
