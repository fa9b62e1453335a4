"""When a publisher goes on after a fault, by the lines of a probe."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from bench.probe import SLOT_S, Probe, by_slot, first_after, parse_ack
from bench.processes import BenchError

FAULT = 1_000_000_000
MS = 1_000_000


def test_the_first_record_that_was_sent_after_the_fault_counts() -> None:
    """It counts however quickly it was acknowledged."""
    acks = [(FAULT - 9 * MS, FAULT - 8 * MS), (FAULT, FAULT + 1), (FAULT + 2, FAULT + 3)]
    assert first_after(acks, FAULT) == (FAULT, FAULT + 1)


def test_an_acknowledgement_that_was_under_way_does_not_count() -> None:
    """The old leader sent it before it died: it says nothing about the next leader."""
    acks = [(FAULT - MS, FAULT + 20 * MS), (FAULT + 21 * MS, FAULT + 900 * MS)]
    assert first_after(acks, FAULT) == acks[1]


def test_a_record_that_was_sent_again_to_the_next_leader_counts() -> None:
    """It was sent before the fault, but acknowledged much later."""
    late = (FAULT - MS, FAULT + 20 * MS + 1)
    assert first_after([late], FAULT) == late


def test_nothing_counts_before_the_fault() -> None:
    """A probe that stands still has no answer."""
    assert first_after([(FAULT - 2, FAULT - 1), (FAULT - 1, FAULT)], FAULT) is None


def test_acknowledgements_are_counted_in_slots_around_the_fault() -> None:
    """What is outside of them is not counted; a slot includes its beginning."""
    at_ms = [-201, -200, -1, 0, 99, 100, 299, 300]
    acks = [(0, FAULT + ms * MS) for ms in at_ms]
    assert by_slot(acks, FAULT, before_s=0.2, after_s=0.3) == [1, 1, 2, 1, 1]


@pytest.mark.parametrize("line", ["", "1", "1 2 3", "one two", "-1 2", "5 4", "error: 1 2"])
def test_other_lines_of_a_probe_are_no_acknowledgements(line: str) -> None:
    """Whatever a client prints besides is passed over."""
    assert parse_ack(line) is None


def test_a_line_of_a_probe_is_two_times() -> None:
    """Sent, acknowledged."""
    assert parse_ack("5 6\n") == (5, 6)


def test_a_probe_that_never_gets_through_is_told_with_its_complaint(tmp_path: Path) -> None:
    """The operator sees the reason before the run ends."""
    command = [sys.executable, "-c", "import sys; print('no leader', file=sys.stderr)"]
    with (
        Probe(command, tmp_path / "probe.log") as probe,
        pytest.raises(BenchError, match="no leader"),
    ):
        probe.warm_up(timeout_s=1.0)


def test_a_timeline_is_whole_when_the_probe_went_on_to_its_end(tmp_path: Path) -> None:
    """Counting waits for that: slots that nobody has seen yet would look like a second outage."""
    program = (
        "import time\n"
        "while True:\n"
        "    sent = time.monotonic_ns()\n"
        "    print(sent, time.monotonic_ns(), flush=True)\n"
    )
    with Probe([sys.executable, "-c", program], tmp_path / "probe.log") as probe:
        probe.warm_up()
        end_ns = time.monotonic_ns() + round(3 * SLOT_S * 1e9)
        probe.go_on_until(end_ns)
        assert end_ns <= time.monotonic_ns()
        assert probe.acks_by_slot(end_ns, before_s=SLOT_S, after_s=0.0) != [0]
