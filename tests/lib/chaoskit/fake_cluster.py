"""A cluster of the mind: brokers that die, elect and come back at once, for the harness's tests.

It stands for real processes behind :class:`chaoskit.cluster.ClusterUnderTest`, and complains when
it is treated as no process can be: started twice, wiped while it runs, resumed when it is not
paused. Time passes only when somebody sleeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chaoskit.cluster import ChaosError, ClusterState, PartitionState, Ports
from checkkit.readings import Reading

_DETECT_S = 0.2  # until a silent broker is noticed


class FakeCluster:
    """Brokers, one stream, a clock, and publishers that are acked while a quorum of it is well.

    The class is not split: it has a method for each one of ``ClusterUnderTest``, and most of them
    are two lines.
    """

    def __init__(self, brokers: int, *, partitions: int = 2, factor: int = 3) -> None:
        self.brokers = tuple("abcdefg"[:brokers])
        self._now_s = 0.0
        self._running = set(self.brokers)
        self._paused: set[str] = set()
        self._cuts: set[tuple[str, str]] = set()
        self._full: set[str] = set()
        self._copies: set[str] = set()
        self._ill_since: dict[str, float] = {}
        self.controller = self.brokers[0]
        self.acked = 0
        self.log: list[str] = []
        self.heals = True  # a test may break it
        self._partitions = {
            number: PartitionState(
                partition=number,
                leader=self.brokers[number % brokers],
                leader_epoch=1,
                isr=frozenset(self._some(number, factor)),
                replicas=frozenset(self._some(number, factor)),
            )
            for number in range(partitions)
        }

    def _some(self, first: int, count: int) -> list[str]:
        return [self.brokers[(first + one) % len(self.brokers)] for one in range(count)]

    # ------------------------------------------------------------------ the clock

    def now_s(self) -> float:
        """See runner.Clock."""
        return self._now_s

    def sleep(self, seconds: float) -> None:
        """See runner.Clock; a broker that is ill for long enough is noticed."""
        self._now_s += seconds
        for broker in self.brokers:
            if self._is_well(broker):
                self._ill_since.pop(broker, None)
            else:
                self._ill_since.setdefault(broker, self._now_s)
        noticed = {
            one for one, since_s in self._ill_since.items() if self._now_s - since_s >= _DETECT_S
        }
        alive = [one for one in self.brokers if one not in noticed]
        if self.controller in noticed and alive:
            self.controller = alive[0]
        for number, one in self._partitions.items():
            self._partitions[number] = self._settled(one, noticed)
        leaders = [one.leader for one in self._partitions.values()]
        if all(one and self._is_well(one) and one not in self._full for one in leaders):
            self.acked += 1

    def _is_well(self, broker: str) -> bool:
        ill = broker not in self._running or broker in self._paused
        others = [one for one in self.brokers if one != broker]
        mute = sum((broker, one) in self._cuts for one in others) * 2 > len(others)
        deaf = sum((one, broker) in self._cuts for one in others) * 2 > len(others)
        return not (ill or mute or deaf)

    def _settled(self, one: PartitionState, noticed: set[str]) -> PartitionState:
        isr = frozenset(
            broker
            for broker in one.replicas
            if broker not in noticed and (one.leader, broker) not in self._cuts
        )
        leader, epoch = one.leader, one.leader_epoch
        if leader is None or leader in noticed or leader not in one.replicas:
            leader = min(isr, default=None)
            epoch += leader is not None
        return replace(one, leader=leader, leader_epoch=epoch, isr=isr)

    # ------------------------------------------------------------------ ClusterUnderTest

    def ports(self, broker: str) -> Ports:
        """See ClusterUnderTest."""
        return Ports(flight=1, http=2)

    def state(self) -> ClusterState | None:
        """See ClusterUnderTest."""
        if not any(self._is_well(broker) for broker in self.brokers):
            return None
        partitions = dict(self._partitions)
        if not self.heals and self.log:
            partitions[0] = replace(partitions[0], leader=None)
        return ClusterState(controller=self.controller, partitions=partitions)

    def start(self, broker: str) -> None:
        """See ClusterUnderTest."""
        assert broker not in self._running, f"{broker} runs already"
        self._running.add(broker)
        self._note("start", broker)

    def stop(self, broker: str) -> None:
        """See ClusterUnderTest."""
        self._end("stop", broker)
        for number, one in self._partitions.items():
            if one.leader == broker:
                to = min(one.isr - {broker}, default=None)
                self._partitions[number] = replace(
                    one, leader=to, leader_epoch=one.leader_epoch + 1
                )

    def kill(self, broker: str) -> None:
        """See ClusterUnderTest. A process that came back at once was away all the same."""
        self._end("kill", broker)
        self._ill_since[broker] = self._now_s - _DETECT_S
        for number, one in self._partitions.items():
            self._partitions[number] = self._settled(one, {broker})

    def _end(self, how: str, broker: str) -> None:
        assert broker in self._running, f"{broker} does not run"
        self._running.discard(broker)
        self._paused.discard(broker)
        self._note(how, broker)

    def pause(self, broker: str) -> None:
        """See ClusterUnderTest."""
        assert broker in self._running - self._paused
        self._paused.add(broker)
        self._note("pause", broker)

    def resume(self, broker: str) -> None:
        """See ClusterUnderTest."""
        assert broker in self._paused, f"{broker} is not paused"
        self._paused.discard(broker)
        self._note("resume", broker)

    def is_running(self, broker: str) -> bool:
        """See ClusterUnderTest."""
        return broker in self._running

    def cut(self, sender: str, receiver: str) -> None:
        """See ClusterUnderTest."""
        assert sender != receiver
        self._cuts.add((sender, receiver))
        self._note("cut", f"{sender}>{receiver}")

    def delay(self, sender: str, receiver: str, delay_ms: float) -> None:
        """See ClusterUnderTest."""
        self._note("delay", f"{sender}>{receiver}")

    def heal_network(self) -> None:
        """See ClusterUnderTest."""
        self._cuts.clear()

    def restart_nats(self, down_ms: float) -> None:
        """See ClusterUnderTest."""
        self._note("nats", "")

    def fill_disk(self, broker: str) -> None:
        """See ClusterUnderTest."""
        self._full.add(broker)
        self._note("fill", broker)

    def free_disk(self, broker: str) -> None:
        """See ClusterUnderTest."""
        self._full.discard(broker)

    def wipe(self, broker: str) -> None:
        """See ClusterUnderTest."""
        assert broker not in self._running, f"{broker} runs on the disk that is wiped"
        self._note("wipe", broker)

    def copy_disk(self, broker: str) -> None:
        """See ClusterUnderTest."""
        self._copies.add(broker)
        self._note("copy", broker)

    def restore_disk(self, broker: str) -> None:
        """See ClusterUnderTest."""
        self._at_rest("restore", broker)
        assert broker in self._copies, f"{broker} was never copied"

    def swap_disk(self, broker: str) -> None:
        """See ClusterUnderTest."""
        self._at_rest("swap", broker)
        assert broker in self._copies, f"{broker} was never copied"

    def lose_partition(self, broker: str, partition: int, *, keep_folder: bool) -> None:
        """See ClusterUnderTest."""
        self._at_rest("empty" if keep_folder else "lose", broker)

    def lose_raft(self, broker: str) -> None:
        """See ClusterUnderTest."""
        self._at_rest("lose raft", broker)

    def _at_rest(self, what: str, broker: str) -> None:
        assert broker not in self._running, f"{broker} runs on the disk that is changed"
        self._note(what, broker)

    def ends_below_table(self, broker: str, partition: int) -> bool:
        """See ClusterUnderTest."""
        assert broker not in self._running, f"{broker} runs, and follows"
        return True

    def elect_unclean(self, partition: int, broker: str) -> int:
        """See ClusterUnderTest."""
        one = self._partitions[partition]
        self._partitions[partition] = replace(
            one, leader=broker, leader_epoch=one.leader_epoch + 1, isr=frozenset({broker})
        )
        self._note("elect", broker)
        return 0

    def transfer_leader(self, partition: int, to: str) -> None:
        """See ClusterUnderTest."""
        one = self._partitions[partition]
        if to not in one.isr:
            raise ChaosError(f"{to} is not in sync")
        self._partitions[partition] = replace(one, leader=to, leader_epoch=one.leader_epoch + 1)
        self._note("transfer", to)

    def reassign(self, partition: int, replicas: Sequence[str]) -> None:
        """See ClusterUnderTest."""
        one = self._partitions[partition]
        self._partitions[partition] = replace(one, replicas=frozenset(replicas))
        self._note("reassign", ",".join(replicas))

    def change_access(self, what: str) -> None:
        """See ClusterUnderTest."""
        self._note("access", what)

    def flush_tier(self) -> None:
        """See ClusterUnderTest."""
        self._note("flush", "")

    def final_reads(self) -> list[Reading]:
        """See ClusterUnderTest; it holds no records."""
        return []

    def _note(self, what: str, who: str) -> None:
        self.log.append(f"{what} {who}".strip())

    def is_clean(self) -> bool:
        """Tell whether nothing is left broken."""
        return self._running == set(self.brokers) and not (self._paused or self._cuts or self._full)
