"""What a program leaves open is ended at its exit; see headwater/client/open_calls.py."""

from __future__ import annotations

import threading
from weakref import WeakSet

import pytest

from headwater.client import Client, open_calls


def test_no_thread_is_inside_arrow_when_the_interpreter_goes(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was sent is still answered."""
    monkeypatch.setattr(open_calls, "_calls", WeakSet())  # calls of other tests stay open
    others = set(threading.enumerate())
    producer = client.producer("s")
    tail = client.fetch("s", start="earliest", follow=True)
    sent = [producer.send([b"%d" % number]) for number in range(50)]
    assert next(tail).base_offset == 0
    open_calls.end_all(60_000)
    names = {thread.name for thread in set(threading.enumerate()) - others}
    assert not names & {"headwater-acks", "headwater-fetch"}
    assert [one.result(0).base_offset for one in sent] == list(range(50))
    producer.close()
    tail.close()
