"""Random publishes and commits: no publish is answered before the time of its policy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.core.replication.acks import AckQueue
from broker.model.offsets import Offset
from broker.model.records import AckPolicy

_POLICIES = st.sampled_from(AckPolicy)
_PUBLISH = st.tuples(_POLICIES, st.integers(0, 3))  # policy, records; 0 is a retry of an old batch
_PROGRESS = st.tuples(st.integers(0, 4), st.integers(0, 4))  # of synced end and high watermark


@given(st.lists(st.one_of(_PUBLISH, _PROGRESS), max_size=60), st.data())
def test_no_ack_is_early_and_none_is_lost(
    steps: list[tuple[AckPolicy | int, int]], data: st.DataObject
) -> None:
    """ALL waits for the high watermark, LEADER for the sync; each is answered once, NONE never."""
    acks: AckQueue[int] = AckQueue()
    needed: dict[int, tuple[AckPolicy, int]] = {}
    answered: list[int] = []
    log_end = synced = committed = 0

    def settle() -> None:
        for token in acks.settled(synced_end=Offset(synced), high_watermark=Offset(committed)):
            policy, end = needed[token]
            assert end <= (committed if policy is AckPolicy.ALL else synced)
            assert policy is not AckPolicy.NONE
            answered.append(token)

    for number, (first, second) in enumerate(steps):
        if isinstance(first, AckPolicy):
            end = log_end + second if second else data.draw(st.integers(0, log_end))
            log_end = max(log_end, end)
            needed[number] = (first, end)
            acks.add(first, Offset(end), number)
        else:
            synced = min(log_end, synced + first)
            committed = min(synced, committed + second)
        settle()
    due = {token for token, (policy, _) in needed.items() if policy is not AckPolicy.NONE}
    waiting = {
        token
        for token in due
        if needed[token][1] > (committed if needed[token][0] is AckPolicy.ALL else synced)
    }
    assert sorted(answered) == sorted(due - waiting)
    assert sorted(acks.abandon()) == sorted(waiting)
