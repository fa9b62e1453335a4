"""The table of a simulated partition, and what a broker does for it: ship, note, free.

The table is ideal, as the metadata log is: a commit is in it once or never. What is not ideal: its
shipper ends between the commit and the note of it, the note is lost on its way, replicas hear of
it late, and every replica frees its own segments when it likes. A shipper looks at its lease in
the instant of the commit; who ships without one is tiering's question, not replication's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.model.lineage import holds
from broker.model.offsets import Offset
from broker.ports.partition import StoredBatch

if TYPE_CHECKING:
    from simkit.cluster.broker import SimBroker


class Table:
    """The records that were shipped, from offset 0 on, and who shipped the newest range."""

    def __init__(self) -> None:
        self.rows: list[StoredBatch] = []
        self.newest_id = ""  # of the leadership that shipped last

    @property
    def end(self) -> Offset:
        """First offset that is not in the table."""
        return Offset(len(self.rows))

    def add(self, batches: list[StoredBatch], lineage_id: str) -> None:
        """Commit."""
        for batch in batches:
            assert batch.header.base_offset == self.end, "the table has a gap, or a record twice"
            self.rows.append(batch)
        self.newest_id = lineage_id


def maintain(broker: SimBroker, table: Table) -> None:
    """Do what is due: as a leader ship, or note what is in the table; as any replica free."""
    chance = broker.world.chance
    if broker.serves and chance(0.4):
        _ship(broker, table)
    elif broker.serves and broker.cold_end < table.end and chance(0.7):
        broker.note_cold_end(table.end)
    if broker.replica is not None and chance(0.3):
        start = broker.log.facts().log_start
        broker.log.free(broker.cold_end)
        if broker.log.facts().log_start > start:
            broker.world.note("T local records freed", broker.name)


def _ship(broker: SimBroker, table: Table) -> None:
    """Commit some of what is committed; the history has to be the table's."""
    replica = broker.replica
    assert replica is not None
    assert replica.leader is not None
    assert replica.view is not None
    facts, start = broker.log.facts(), table.end
    end = Offset(min(replica.leader.high_watermark, start + broker.world.rng.randrange(1, 12)))
    if end <= start:
        return
    assert facts.log_start <= start, f"{broker.name} has freed what is not in the table"
    if start > facts.log_start:
        shipped = table.rows[start - 1].header.leader_epoch
        assert broker.log.last_epoch(start) == shipped, f"{broker.name} has another history"
    lineage = replica.view.lineage
    if table.newest_id and not holds(lineage, table.newest_id, start):
        assert broker.is_behind, f"what was shipped up to {start} is of no history of {lineage}"
        broker.world.note("T former leader does not ship", broker.name)
        return
    newest = next(one for one in lineage if one.leader_epoch == replica.leader.leader_epoch)
    table.add(broker.log.read(start, end - start), newest.lineage_id)
    broker.world.note("T shipped", broker.name, start, end)
