"""The arithmetic inside the measures, without a server."""

from __future__ import annotations

import pytest

from bench import payloads
from bench.measures.tiering import count_requests
from bench.payloads import batch_of, payload
from bench.processes import span_s


def test_requests_are_counted_by_method_in_motos_log() -> None:
    """Only request lines count, whatever else is in the log."""
    log = (
        b" * Running on http://127.0.0.1:5000\n"
        b'127.0.0.1 - - [21/Nov/2026 11:00:00] "PUT /bench/a/b%20c HTTP/1.1" 200 -\n'
        b'127.0.0.1 - - [21/Nov/2026 11:00:00] "GET /bench?list-type=2 HTTP/1.1" 200 -\n'
        b'127.0.0.1 - - [21/Nov/2026 11:00:01] "PUT /bench/d HTTP/1.1" 412 -\n'
    )
    assert count_requests(log) == {"PUT": 2, "GET": 1}


def test_several_loads_last_from_the_first_start_to_the_last_end() -> None:
    """A publisher that starts late does not shorten the time of all."""
    loads = [{"start_ns": 1_000, "end_ns": 5_000}, {"start_ns": 2_000, "end_ns": 9_000}]
    assert span_s(loads) == pytest.approx(8e-6)


@pytest.mark.parametrize("size", [1, 100, 1024])
def test_every_value_has_the_size_that_is_reported(size: int) -> None:
    """Rates in bytes are computed from the size, so it has to be true."""
    assert len(payload(size)) == size
    values = batch_of(size, 50).column(0).to_pylist()
    assert [len(value) for value in values] == [size] * 50
    assert len(set(values)) > 1


def test_keyed_values_have_their_size_and_repeat_their_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are what tiering and Spark read: fixed size, few keys."""
    monkeypatch.setattr(payloads, "_DISTINCT_BYTES", 1)  # one batch is enough here
    (batch,) = payloads.keyed_batches(100, 8192)
    assert {len(value) for value in batch.column("value").to_pylist()} == {100}
    assert len(set(batch.column("key").to_pylist())) < 4_001
