"""A saved cut is read only from the history in which it was taken."""

from __future__ import annotations

import dataclasses
import json

import pytest

from broker.errors import ForeignHistoryError, InvalidCutError
from broker.model.cut import Cut, Lease, PartitionCut
from broker.model.cut_positions import CutPosition, refusal
from broker.model.epochs import LeaderEpoch
from broker.model.ids import LeaseId, StreamUuid
from broker.model.lineage import LINEAGE_KEPT, Leadership, Lineage
from broker.model.offsets import Offset

FIRST, SECOND, OTHER = ("a" * 32, "b" * 32, "c" * 32)
LINEAGE: Lineage = (
    Leadership(leader_epoch=LeaderEpoch(1), lineage_id=FIRST, start=Offset(0)),
    Leadership(leader_epoch=LeaderEpoch(2), lineage_id=SECOND, start=Offset(100)),
)


@pytest.mark.parametrize(
    ("lineage_id", "end", "kind"),
    [
        (FIRST, 100, None),
        (SECOND, 900, None),
        (FIRST, 101, ForeignHistoryError),  # 101 records were committed before the restore
        (OTHER, 5, ForeignHistoryError),
        (None, 5, InvalidCutError),
    ],
)
def test_a_position_is_of_this_history_or_named(
    lineage_id: str | None, end: int, kind: type[Exception] | None
) -> None:
    """After a restore other records may be at the offsets of the cut."""
    found = refusal("s", [LINEAGE], [CutPosition(lineage_id, Offset(end))])
    assert (None if found is None else type(found)) is kind


def test_a_cut_without_all_partitions_is_refused() -> None:
    """A position is needed for each partition, and no further one."""
    one = CutPosition(FIRST, Offset(1))
    assert isinstance(refusal("s", [LINEAGE, LINEAGE], [one]), InvalidCutError)
    assert isinstance(refusal("s", [LINEAGE], [one, one]), InvalidCutError)


def test_every_partition_of_a_cut_is_compared() -> None:
    """The positions after the first one count, too."""
    ours, foreign = CutPosition(SECOND, Offset(900)), CutPosition(OTHER, Offset(5))
    for number in range(3):
        positions = [ours, ours, ours]
        positions[number] = foreign
        found = refusal("s", [LINEAGE] * 3, positions)
        assert isinstance(found, ForeignHistoryError)
        assert f"partition {number} " in found.message


def test_a_forgotten_leadership_is_ours_only_for_who_believes_it() -> None:
    """A lineage that is full has dropped leaderships; a cut of one looks like a foreign one."""
    full: Lineage = tuple(
        Leadership(leader_epoch=LeaderEpoch(one + 1), lineage_id=f"{one:032x}", start=Offset(100))
        for one in range(LINEAGE_KEPT)
    )
    forgotten = [CutPosition(OTHER, Offset(100))]
    assert isinstance(refusal("s", [full], forgotten), ForeignHistoryError)
    assert refusal("s", [full], forgotten, believe_forgotten=True) is None
    beyond = [CutPosition(OTHER, Offset(101))]
    assert isinstance(refusal("s", [full], beyond, believe_forgotten=True), ForeignHistoryError)


def test_what_was_saved_before_lineages_still_loads() -> None:
    """The broker that knows the stream refuses it by name."""
    cut = Cut(
        cluster="c", stream="s", stream_uuid=StreamUuid("00000000-0000-0000-0000-000000000001"),
        subject="s", table_uri="", table_version=None, taken_us=1,
        lease=Lease(lease_id=LeaseId("l"), expires_us=2),
        partitions=(
            PartitionCut(
                partition=0, start=Offset(0), cold_end=Offset(0), hot_end=Offset(3),
                leader_epoch=LeaderEpoch(1), lineage_id=FIRST,
            ),
        ),
    )  # fmt: skip
    assert Cut.load(cut.save()) == cut
    values = json.loads(json.dumps(cut.to_dict()))
    values["v"] = 1
    del values["table_digest"], values["partitions"][0]["lineage_id"]
    old = Cut.from_dict(values)
    assert old == dataclasses.replace(
        cut, partitions=(dataclasses.replace(cut.partitions[0], lineage_id=None),)
    )
    assert isinstance(refusal("s", [LINEAGE], old.positions), InvalidCutError)


def test_a_cut_from_before_partitions_were_added_names_fewer() -> None:
    """Its partitions are compared; it may not name fewer than the stream ever had, nor more."""
    ours = CutPosition(SECOND, Offset(900))
    foreign = CutPosition(OTHER, Offset(5))
    grown = [LINEAGE] * 4
    assert refusal("s", grown, [ours] * 2, partitions_min=2) is None
    assert refusal("s", grown, [ours] * 4, partitions_min=2) is None
    assert isinstance(refusal("s", grown, [ours, foreign], partitions_min=2), ForeignHistoryError)
    for count in (0, 1, 5):
        found = refusal("s", grown, [ours] * count, partitions_min=2)
        assert isinstance(found, InvalidCutError)
    assert isinstance(refusal("s", grown, [ours] * 2), InvalidCutError)
