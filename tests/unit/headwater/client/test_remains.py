"""What the brokers of a cluster say of a deleted stream, summed up."""

from __future__ import annotations

import pytest

from broker.errors import InvalidRequestError
from broker.model.ids import StreamUuid
from broker.model.tiering import StreamRemains
from headwater.client.remains import told_by

GONE = StreamRemains(present=False, deleted=True, shipping=False)
SHIPS = StreamRemains(present=False, deleted=True, shipping=True)
BEHIND = StreamRemains(present=True, deleted=False, shipping=True)
IDLE = StreamRemains(present=True, deleted=False, shipping=False)
STRANGER = StreamRemains(present=False, deleted=False, shipping=False)
UUID = StreamUuid("00000000-0000-0000-0000-000000000001")


def test_a_deletion_that_one_broker_knows_is_the_clusters() -> None:
    """Nobody is waited for once all know it and ship nothing."""
    told = told_by({"a": GONE, "b": GONE})
    told.require_deleted(UUID)
    assert told.waiting_for == ()


def test_each_broker_that_could_write_is_waited_for_by_name() -> None:
    """Behind, idle and behind, still shipping, or mute."""
    told = told_by({"a": GONE, "b": SHIPS, "c": BEHIND, "d": IDLE, "e": None})
    told.require_deleted(UUID)
    assert told.waiting_for == (
        "b (may be writing to the table)",
        "c (may be writing to the table)",
        "d (does not know of the deletion yet)",
        "e (does not answer)",
    )


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"a": BEHIND, "b": None}, "exists"),
        ({"a": STRANGER}, "does not remember"),
        ({"a": None, "b": None}, "does not remember"),
    ],
)
def test_a_table_is_kept_unless_this_cluster_deleted_its_stream(
    answers: dict[str, StreamRemains | None], said: str
) -> None:
    """Another cluster's stream is not known here, and may be alive there."""
    with pytest.raises(InvalidRequestError, match=said):
        told_by(answers).require_deleted(UUID)
