"""Checks of what publishers were told, without any read: answers against answers.

An ack under ALL is for ever; one under LEADER holds as long as that leader epoch does; one under
NONE says nothing. So acks under LEADER are compared only within one epoch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from checkkit.anomalies import Anomaly, Violation
from checkkit.facts import Facts, groups, newest_before
from checkkit.history import NEVER, NOBODY


def check_acks(facts: Facts) -> Iterator[Violation]:
    """Yield every contradiction between answers."""
    yield from facts.history.violations
    yield from _check_single(facts)
    yield from _check_changed(facts)
    yield from _check_shared(facts)
    yield from _check_send_back(facts)
    yield from _check_real_time(facts)
    yield from _check_epochs_of_clients(facts)
    yield from _check_leaders(facts)
    yield from _check_high_watermarks(facts)


def _check_single(facts: Facts) -> Iterator[Violation]:
    ack, partition = facts.ack, facts.record["partition"]
    for row in np.flatnonzero(ack["partition"] != partition[ack["record"]]):
        record = ack["record"][row]
        detail = f"{facts.name(record)} was sent to {partition[record]}"
        yield _violation(Anomaly.MOVED, facts, int(row), detail)
    if facts.rules.transport_doubles:
        return
    for row in np.flatnonzero((ack["duplicate"] != 0) & (ack["attempts"] == 1)):
        detail = f"{facts.name(ack['record'][row])} was sent only once"
        yield _violation(Anomaly.FALSE_DUPLICATE, facts, int(row), detail)


def _check_changed(facts: Facts) -> Iterator[Violation]:
    """All acks of a record name one offset; under LEADER all of one epoch do."""
    ack = facts.ack
    epoch = np.where(facts.ack_survives, NOBODY, ack["epoch"])
    order = np.lexsort((np.arange(len(epoch)), epoch, ack["record"]))
    record, epoch, offset = ack["record"][order], epoch[order], ack["offset"][order]
    same = (record[1:] == record[:-1]) & (epoch[1:] == epoch[:-1])
    for place in np.flatnonzero(same & (offset[1:] != offset[:-1])):
        detail = f"{facts.name(record[place])} was acked at {offset[place]} first"
        yield _violation(Anomaly.ACK_CHANGED, facts, int(order[place + 1]), detail)


def _check_shared(facts: Facts) -> Iterator[Violation]:
    """An offset belongs to one record: for ever under ALL, within its epoch under LEADER."""
    ack = facts.ack
    seen: set[tuple[int, int, int]] = set()
    for chosen, keys in (
        (np.flatnonzero(facts.ack_survives), ("offset", "partition")),
        (np.flatnonzero(ack["epoch"] >= 0), ("epoch", "offset", "partition")),
    ):
        columns = [ack[key][chosen] for key in keys]
        order = np.lexsort((ack["record"][chosen], *columns))
        rows = chosen[order]
        same = ack["record"][rows[1:]] != ack["record"][rows[:-1]]
        for column in columns:
            same &= column[order[1:]] == column[order[:-1]]
        for place in np.flatnonzero(same):
            row, before = rows[place + 1], rows[place]
            key = (int(ack["partition"][row]), int(ack["offset"][row]), int(ack["record"][row]))
            if key not in seen:
                seen.add(key)
                one, other = ack["record"][before], ack["record"][row]
                detail = f"acked to {facts.name(one)} and to {facts.name(other)}"
                yield _violation(Anomaly.ACK_SHARED, facts, int(row), detail)


def _check_send_back(facts: Facts) -> Iterator[Violation]:
    """An ordered producer's acked offsets grow with its sequence."""
    record = facts.record
    mine = np.flatnonzero(facts.is_ordered & (facts.acked_ns != NEVER))
    keys = (record["sequence"][mine], record["partition"][mine], record["producer"][mine])
    rows = mine[np.lexsort(keys)]
    before, after = rows[:-1], rows[1:]
    same = (record["producer"][before] == record["producer"][after]) & (
        record["partition"][before] == record["partition"][after]
    )
    comparable = (facts.ack_is_kept[before] & facts.ack_is_kept[after]) | (
        facts.acked_epoch[before] == facts.acked_epoch[after]
    )
    falls = facts.acked_offset[after] < facts.acked_offset[before]
    for place in np.flatnonzero(same & comparable & falls):
        one, other = after[place], before[place]
        detail = f"{facts.name(one)} is below {facts.name(other)} of the same producer"
        offset = int(facts.acked_offset[one])
        yield Violation(Anomaly.SEND_BACK, int(record["partition"][one]), offset, detail)


def _check_real_time(facts: Facts) -> Iterator[Violation]:
    """Whatever is sent after an ack lands above it, in that epoch or a later one.

    An ack under LEADER may come of a leader that was replaced and cannot know it yet; its lease
    bounds for how long, and the simulation's oracle checks that.
    """
    ack = facts.ack
    began_ns = facts.record["first_ns"][ack["record"]]
    for _, rows in groups(ack["partition"]):
        kept = rows[facts.ack_survives[rows]]
        times = ack["at_ns"]
        largest, holder = newest_before(times[kept], ack["offset"][kept], began_ns[rows])
        for place in np.flatnonzero(ack["offset"][rows] < largest):
            row, other = int(rows[place]), ack["record"][kept[holder[place]]]
            name = facts.name(ack["record"][row])
            detail = f"{name} was sent after the ack of {facts.name(other)} at {largest[place]}"
            yield _violation(Anomaly.REAL_TIME_ORDER, facts, row, detail)
        known = rows[ack["epoch"][rows] >= 0]
        lasting = known[facts.ack_survives[known]]
        newest, _ = newest_before(times[known], ack["epoch"][known], began_ns[lasting])
        for place in np.flatnonzero(ack["epoch"][lasting] < newest):
            row = int(lasting[place])
            name = facts.name(ack["record"][row])
            detail = f"{name} was sent after an ack of epoch {newest[place]} was heard"
            yield _violation(Anomaly.EPOCH_BACK, facts, row, detail)


def _check_epochs_of_clients(facts: Facts) -> Iterator[Violation]:
    """One client believes no answer of an older epoch than it has heard of."""
    ack = facts.ack
    clients = facts.record["client"][ack["record"]]
    known = np.flatnonzero((clients >= 0) & (ack["epoch"] >= 0))
    count = len(facts.history.clients.known)
    for _, places in groups(ack["partition"][known] * count + clients[known]):
        rows = known[places]
        epochs = ack["epoch"][rows]
        newest = np.maximum.accumulate(epochs)
        for place in np.flatnonzero(epochs < newest):
            row = int(rows[place])
            name = facts.name(ack["record"][row])
            detail = f"{name} was acked in epoch {epochs[place]} after one of {newest[place]}"
            yield _violation(Anomaly.EPOCH_BACK, facts, row, detail)


def _check_leaders(facts: Facts) -> Iterator[Violation]:
    for (partition, epoch), nodes in facts.history.leaders.items():
        if len(nodes) > 1:
            names = ", ".join(facts.history.nodes.name(node) for node in nodes)
            detail = f"epoch {epoch} is led by {names}"
            yield Violation(Anomaly.TWO_LEADERS, partition, None, detail)


def _check_high_watermarks(facts: Facts) -> Iterator[Violation]:
    """What one leader of one epoch shows as committed never falls."""
    seen = facts.history.high_watermarks
    rows_of: dict[tuple[int, int, int], list[int]] = {}
    keys = zip(seen["partition"], seen["node"], seen["epoch"], strict=True)
    for row, key in enumerate(keys):
        rows_of.setdefault(key, []).append(row)
    for (partition, node, epoch), rows in rows_of.items():
        ends, at_ns, began_ns = (
            np.array([seen[name][row] for row in rows]) for name in ("end", "at_ns", "began_ns")
        )
        largest, _ = newest_before(at_ns, ends, began_ns)
        for place in np.flatnonzero(ends < largest):
            who = facts.history.nodes.name(node)
            detail = f"{who} in epoch {epoch} had shown {largest[place]}"
            yield Violation(Anomaly.HIGH_WATERMARK_BACK, partition, int(ends[place]), detail)


def _violation(kind: Anomaly, facts: Facts, row: int, detail: str) -> Violation:
    ack = facts.ack
    return Violation(kind, int(ack["partition"][row]), int(ack["offset"][row]), detail)
