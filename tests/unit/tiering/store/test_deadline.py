"""A call that never returns is given up; results and errors pass through."""

from __future__ import annotations

import threading

import pytest

from broker.errors import RemoteTierUnavailableError
from tiering.store.deadline import call_with_deadline


def test_results_and_errors_pass_through() -> None:
    """The caller cannot tell that another thread did it."""
    assert call_with_deadline(lambda: 7, seconds=60, what="x") == 7
    with pytest.raises(ZeroDivisionError):
        call_with_deadline(lambda: 1 // 0, seconds=60, what="x")


def test_a_hanging_call_is_given_up() -> None:
    """The error names the call; the thread ends whenever the call does."""
    release = threading.Event()
    with pytest.raises(RemoteTierUnavailableError) as caught:
        call_with_deadline(release.wait, seconds=0.05, what="upload of x")
    assert caught.value.what == "upload of x"
    release.set()
