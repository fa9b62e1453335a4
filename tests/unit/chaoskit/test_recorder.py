"""The recorder of a chaos run: batches, polls and leaders become a history that is judged."""

from __future__ import annotations

import itertools
import threading

from broker.model.records import AckPolicy
from chaoskit.recorder import ChaosRecorder
from checkkit.anomalies import Anomaly
from checkkit.readings import Reading, Row, Source, of_log


def _recorder() -> ChaosRecorder:
    ticks = itertools.count(10, 10)
    return ChaosRecorder(lambda: next(ticks))


def _contents(count: int, prefix: str = "r") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def _replicas(rows: list[Row]) -> list[Reading]:
    part = of_log(0, rows, end=len(rows))
    return [Reading.of(name, 10**9, [part], Source.REPLICA) for name in "ab"]


def test_a_batch_over_a_failover_is_judged_clean() -> None:
    """Sent, retried after a failover, recognised; a consumer follows to the end."""
    recorder = _recorder()
    recorder.expect_order("p")
    contents = _contents(3)
    batch = recorder.send(contents, client="c", producer="p", base_sequence=0, partition=0)
    recorder.retry(batch)
    recorder.ok(batch, base_offset=0, leader_epoch=2, duplicate=True, node="b/1")
    rows = [Row(place, one, 1) for place, one in enumerate(contents)]
    began_ns = recorder.began()
    recorder.polled(
        "reader", 0, rows, began_ns=began_ns, high_watermark=3, node="b/1", leader_epoch=2
    )
    recorder.follow_to_the_end("reader", 0)
    assert recorder.acked_count == 3
    verdict = recorder.judge(_replicas(rows))
    assert verdict.ok, str(verdict)


def test_each_record_of_a_batch_has_its_own_offset() -> None:
    """A replica that lacks the last record of an acked batch has lost one."""
    recorder = _recorder()
    contents = _contents(3)
    batch = recorder.send(contents, client="c", producer="p", base_sequence=0, partition=0)
    recorder.ok(batch, base_offset=0, leader_epoch=1, duplicate=False)
    rows = [Row(place, one, 1) for place, one in enumerate(contents[:2])]
    assert recorder.judge(_replicas(rows)).counts == {Anomaly.LOST: 1}


def test_what_consumers_and_operators_say_is_kept() -> None:
    """Truncations, seeks, leaders and accepted losses reach the judge."""
    recorder = _recorder()
    contents = _contents(2)
    batch = recorder.send(contents, client="c", producer="p", base_sequence=0, partition=0)
    recorder.ok(batch, base_offset=0, leader_epoch=1, duplicate=False, node="a/1")
    rows = [Row(place, one, 1) for place, one in enumerate(contents)]
    recorder.polled("eager", 0, rows, began_ns=recorder.began(), committed=False)
    recorder.forgive(0, 1)
    recorder.truncated("eager", 0, 1)
    late = recorder.send([b"x"], client="c", producer="p", base_sequence=2, partition=0)
    recorder.ok(late, base_offset=1, leader_epoch=2, duplicate=False, node="b/1")
    rows[1] = Row(1, b"x", 2)
    recorder.polled("eager", 0, rows[1:], began_ns=recorder.began(), committed=False)
    recorder.seek("eager", 0, 0)
    recorder.polled("eager", 0, rows, began_ns=recorder.began(), committed=False)
    verdict = recorder.judge(_replicas(rows))
    assert verdict.ok, str(verdict)
    recorder.leads(0, 2, "a/1")
    assert recorder.judge(_replicas(rows)).counts == {Anomaly.TWO_LEADERS: 1}


def test_policies_and_failures_reach_the_judge() -> None:
    """A NONE record may be lost; one whose only attempt failed may not be there."""
    recorder = _recorder()
    recorder.send(
        [b"n"], client="c", producer="n", base_sequence=0, partition=0,
        policy=AckPolicy.NONE, identified=False,
    )  # fmt: skip
    refused = recorder.send([b"f"], client="c", producer="p", base_sequence=0, partition=0)
    recorder.fail(refused, "too large")
    assert recorder.judge(_replicas([])).ok
    assert recorder.judge(_replicas([Row(0, b"f", 1)])).counts == {Anomaly.ABORTED: 1}
    assert len(recorder.send([], client="c", producer="p", base_sequence=1, partition=0)) == 0


def test_many_threads_record_at_once() -> None:
    """Batches of several threads do not get into each other."""
    recorder = ChaosRecorder()

    def load(name: str) -> None:
        for number in range(50):
            contents = _contents(4, f"{name}/{number}/")
            batch = recorder.send(
                contents, client=name, producer=name, base_sequence=4 * number, partition=0
            )
            assert len(batch) == 4

    threads = [threading.Thread(target=load, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with recorder.history() as history:
        assert history.sent_count == 800
