"""The log's parts on their own: index, epoch history, handle pool."""

from __future__ import annotations

import random

import pytest

from broker.codec.disk.index_format import IndexEntries
from broker.model.epoch_history import EpochHistory
from broker.model.epochs import EpochStart, LeaderEpoch
from broker.model.offsets import Offset
from broker.storage.segments.handle_pool import HandlePool
from broker.storage.segments.index import SegmentIndex
from simkit.disk.disk import SimDisk


def test_an_index_keeps_one_batch_per_interval() -> None:
    """The first batch is always in it, then the first of each interval, and whatever is forced."""
    index = SegmentIndex(100)
    for number in range(10):
        index.note(Offset(number), 64 + 40 * number, number, force=number == 8)
    assert index.entries().offsets.tolist() == [0, 3, 6, 8]
    loaded = SegmentIndex(100, index.entries())
    assert loaded.place_of(Offset(5)) == (3, 64 + 120)
    assert loaded.place_of(Offset(0)) == (0, 64)
    assert SegmentIndex(100).place_of(Offset(5)) is None


def test_an_index_knows_each_of_the_newest_batches() -> None:
    """A reader of what was just written parses no header before it; memory stays bounded."""
    index = SegmentIndex(4_000)
    for number in range(1_000):
        index.note(Offset(10 * number), 64 + 40 * number, number)
        exact = range(max(0, number - 63), number + 1)
        assert all(index.place_of(Offset(10 * n + 9)) == (10 * n, 64 + 40 * n) for n in exact)
    assert len(index) == 10
    known = {index.place_of(Offset(10 * number)) for number in range(1_000)}
    assert len(known) <= 10 + 2 * 64
    assert index.place_of(Offset(5_010)) == (5_000, 64 + 40 * 500)
    index.forget_newest()
    assert len({index.place_of(Offset(10 * number)) for number in range(1_000)}) == 10


def test_an_index_finds_the_last_place_before_a_time() -> None:
    """Equal running maxima, as equal timestamps make them, lead to the earliest useful place."""
    index = SegmentIndex(1, IndexEntries.of([0, 5, 9, 12], [64, 100, 200, 300], [0, 7, 7, 9]))
    assert index.place_before(0) is None
    assert index.place_before(1) == (0, 64)
    assert index.place_before(7) == (0, 64)
    assert index.place_before(8) == (9, 200)
    assert index.place_before(99) == (12, 300)


def history(*pairs: tuple[int, int]) -> EpochHistory:
    """Return a history of (epoch, start) pairs."""
    return EpochHistory(tuple(EpochStart(LeaderEpoch(e), Offset(o)) for e, o in pairs))


def test_epochs_answer_who_wrote_an_offset() -> None:
    """An offset belongs to the last epoch that began at or below it."""
    epochs = history((1, 0), (3, 10), (4, 10), (7, 30))
    assert [epochs.epoch_of(Offset(offset)) for offset in (0, 9, 10, 29, 30, 99)] == [
        1, 1, 4, 4, 7, 7,
    ]  # fmt: skip
    assert history((5, 20)).epoch_of(Offset(3)) == 0


def test_epochs_answer_where_an_epoch_ends() -> None:
    """An unknown epoch is answered by the one below it (KIP-279)."""
    epochs = history((1, 0), (3, 10), (7, 30))
    end = Offset(50)
    assert epochs.end_of(LeaderEpoch(1), end) == (1, 10)
    assert epochs.end_of(LeaderEpoch(2), end) == (1, 10)
    assert epochs.end_of(LeaderEpoch(5), end) == (3, 30)
    assert epochs.end_of(LeaderEpoch(9), end) == (7, 50)
    assert epochs.end_of(LeaderEpoch(0), end) == (0, 0)


def test_epochs_are_cut_with_the_log() -> None:
    """Epochs that begin above the new end are forgotten; epochs are added only at the end."""
    epochs = history((1, 0), (3, 10), (7, 30))
    assert epochs.cut(Offset(29)) == history((1, 0), (3, 10))
    assert epochs.cut(Offset(30)) == epochs
    assert epochs.begun(LeaderEpoch(8), Offset(30)).latest == 8
    with pytest.raises(AssertionError):
        epochs.begun(LeaderEpoch(7), Offset(40))


def test_handles_in_use_are_never_closed() -> None:
    """The pool closes idle files beyond its limit, and dropped ones when their user leaves."""
    files = SimDisk(random.Random(1)).files()
    files.make_folder("a")
    closed: list[str] = []

    class Recording:
        def __init__(self, path: str) -> None:
            self.path = path

        def close(self) -> None:
            closed.append(self.path)

    class RecordingFiles:
        def open(self, path: str, *, create: bool = False) -> Recording:
            return Recording(path)

    pool = HandlePool(RecordingFiles(), 1)  # type: ignore[arg-type]
    with pool.use("a"):
        with pool.use("b"), pool.use("c"):
            pass
        assert closed in (["b"], ["c"])
        pool.drop("a")
        assert "a" not in closed
    assert "a" in closed
    pool.pin("d")
    pool.unpin("d")
    pool.close()
    assert sorted(closed) == ["a", "b", "c", "d"]
    with pool.use("e"):
        pool.close()
        with pool.use("e"), pool.use("f"):  # by readers that know not yet
            pass
    assert sorted(closed[4:]) == ["e", "e", "f"]
