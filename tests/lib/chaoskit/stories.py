"""Every way to break a cluster that we know of, as data: who is hit, with what, in which order.

A story names roles, not brokers; who plays them is looked up when it begins. ``leader`` leads the
partition that the story is about, ``f1``, ``f2``… are the others, replicas of it first, and
``controller`` leads the metadata; ``now`` is who leads when the step comes. Groups: ``all``
brokers, ``others`` than the leader, ``rest``, who has no other role in the story; and outside the
cluster ``clients`` and ``nats``.
Sources: Redpanda's chaos scenarios, Jepsen on NATS 2.12.1, replication_pitfalls.md 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Do(Enum):
    """What can be done to a role, or between two."""

    KILL = "kill -9"
    START = "start"
    STOP = "stop gracefully"
    PAUSE = "SIGSTOP"
    RESUME = "SIGCONT"
    CUT = "cut"  # from ``who`` to ``to``, one way
    SLOW = "slow"  # the same, delayed
    HEAL = "heal the network"
    NATS = "restart nats-server"
    FILL = "fill the disk"
    FREE = "free the disk"
    WIPE = "wipe the disk"
    COPY = "copy the disk while the broker runs"
    RESTORE = "put the copy of the disk in its place"
    SWAP = "exchange the disk and its copy"
    LOSE = "remove the partition's folder"
    EMPTY = "empty the partition's folder"
    LOSE_RAFT = "remove the Raft journal and its vote"
    ELECT = "elect a replica that lacks records"
    APART = "wait until the replica's log ends below the cold end"
    TRANSFER = "transfer the leadership"
    REASSIGN = "reassign replicas"
    FLUSH = "flush the tier"
    ACCESS = "change who may do what, and see it in force"
    WAIT = "wait"
    ACKS = "wait for acknowledgements"
    SYNC = "wait until all replicas are in sync"


class Need(Enum):
    """What a machine may not permit; see permits.py."""

    SMALL_DISKS = "a small disk for each broker"
    ACCESS = "brokers that ask who calls"
    CLIENT_LINKS = "links between clients and brokers that can be cut"


class Evidence(Enum):
    """What must have been seen during a story, or it was told and not reached."""

    FAILOVER = "a later leader epoch"
    SHRINK = "a replica out of the ISR"
    MOVED = "other replicas"
    STALL = "a moment without acks"
    NEW_CONTROLLER = "another controller"
    IN_FORCE = "a change of access in force"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing done; ``ms`` is how long a wait, an outage or a delay is, before jitter.

    ``count`` is how many records have to be acknowledged meanwhile.
    """

    do: Do
    who: str = ""
    to: str = ""
    ms: int = 0
    count: int = 0
    what: str = ""  # of ACCESS: a change that guards.py has


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Steps in their order. Afterwards everything is healed, whatever the steps left broken."""

    name: str
    steps: tuple[Step, ...]
    evidence: frozenset[Evidence] = frozenset()
    needs: frozenset[Need] = frozenset()
    brokers_min: int = 3


def _wait(ms: int) -> Step:
    return Step(Do.WAIT, ms=ms)


def _acks(count: int) -> Step:
    return Step(Do.ACKS, ms=30_000, count=count)


def _cut_off(who: str, others: str = "others") -> tuple[Step, Step]:
    return Step(Do.CUT, who, others), Step(Do.CUT, others, who)


def _story(
    name: str,
    *steps: Step,
    evidence: tuple[Evidence, ...] = (),
    needs: tuple[Need, ...] = (),
    brokers_min: int = 3,
) -> Story:
    return Story(
        name=name,
        steps=steps,
        evidence=frozenset(evidence),
        needs=frozenset(needs),
        brokers_min=brokers_min,
    )


_FAILOVER, _SHRINK = (Evidence.FAILOVER,), (Evidence.SHRINK,)
_CONTROLLER: Final = (Evidence.NEW_CONTROLLER,)
_LAG_MS: Final = 16_000  # a replica that asks and never gets on leaves the ISR after 10 s
_DOWN_MS: Final = 4_000  # well above a session, jitter included

_PROCESSES: Final = (
    _story("kill the leader", Step(Do.KILL, "leader"), _wait(_DOWN_MS), evidence=_FAILOVER),
    _story(
        "kill the leader, start it at once",
        Step(Do.KILL, "leader"), Step(Do.START, "leader"), _wait(1_500),
        evidence=_FAILOVER,
    ),
    _story("kill a follower", Step(Do.KILL, "f1"), _wait(_DOWN_MS), evidence=_SHRINK),
    _story(
        "kill the controller", Step(Do.KILL, "controller"), _wait(_DOWN_MS), evidence=_CONTROLLER
    ),
    _story(
        "kill leader and controller",
        Step(Do.KILL, "leader"), Step(Do.KILL, "controller"), _wait(2_000),
        Step(Do.START, "leader"), Step(Do.START, "controller"), _wait(1_000),
        evidence=_FAILOVER,
    ),
    _story(
        "kill every broker",
        Step(Do.KILL, "all"), _wait(500), Step(Do.START, "all"), _wait(1_000),
        evidence=_FAILOVER,
    ),
    _story(
        "kill every broker and nats-server",
        Step(Do.KILL, "all"), Step(Do.NATS, ms=500), Step(Do.START, "all"), _wait(1_000),
        evidence=_FAILOVER,
    ),
    _story(
        "kill every broker, and again while they start",
        Step(Do.KILL, "all"), _wait(200), Step(Do.START, "all"), _wait(1_500),
        Step(Do.KILL, "all"), _wait(200), Step(Do.START, "all"), _wait(1_000),
        evidence=_FAILOVER,
    ),
    _story(
        "restart storm: whoever leads is killed",
        *(one for _ in range(4) for one in (
            Step(Do.KILL, "now"), _wait(600), Step(Do.START, "all"), _wait(350),
        )),
        evidence=_FAILOVER,
    ),
    _story(
        "rolling restart",
        *(one for who in ("f1", "f2", "leader") for one in (
            Step(Do.STOP, who), _wait(200), Step(Do.START, who), Step(Do.SYNC, ms=30_000),
        )),
        evidence=_FAILOVER,
    ),
    _story("pause the leader", Step(Do.PAUSE, "leader"), _wait(_DOWN_MS), evidence=_FAILOVER),
    _story("pause the leader briefly", Step(Do.PAUSE, "leader"), _wait(300)),
    _story("pause a follower", Step(Do.PAUSE, "f1"), _wait(_DOWN_MS), evidence=_SHRINK),
    _story(
        "pause the controller", Step(Do.PAUSE, "controller"), _wait(_DOWN_MS),
        evidence=_CONTROLLER,
    ),
    _story("pause every broker", Step(Do.PAUSE, "all"), _wait(_DOWN_MS)),
)  # fmt: skip

_NETWORK: Final = (
    _story(
        "cut the leader off from the brokers", *_cut_off("leader"), _wait(_DOWN_MS),
        evidence=_FAILOVER,
    ),
    _story("cut a follower off", *_cut_off("f1", "all"), _wait(_DOWN_MS), evidence=_SHRINK),
    _story(
        "cut the controller off", *_cut_off("controller", "all"), _wait(_DOWN_MS),
        evidence=_CONTROLLER,
    ),
    _story("one way: nobody hears the leader", Step(Do.CUT, "leader", "others"), _wait(5_000),
           evidence=_FAILOVER),
    _story("one way: the leader hears nobody", Step(Do.CUT, "others", "leader"), _wait(5_000),
           evidence=_FAILOVER),
    _story("one way: a follower does not hear the leader", Step(Do.CUT, "leader", "f1"),
           _wait(_LAG_MS), evidence=_SHRINK),
    _story("partial: leader and one follower apart, all see the rest", *_cut_off("leader", "f1"),
           _wait(_LAG_MS), evidence=_SHRINK),
    _story("every broker apart", *_cut_off("all", "all"), _wait(_DOWN_MS)),
    _story("swizzle", *_cut_off("f1", "all"), _wait(200), *_cut_off("leader"), _wait(200),
           *_cut_off("f2", "all"), _wait(1_500)),
    _story("slow the leader's links", Step(Do.SLOW, "leader", "others", 150),
           Step(Do.SLOW, "others", "leader", 150), _wait(_DOWN_MS)),
    _story("cut the publishers off", *_cut_off("clients", "leader"), _wait(1_000),
           needs=(Need.CLIENT_LINKS,)),
    _story("restart nats-server", Step(Do.NATS, ms=500), _wait(500)),
    _story(
        "restart nats-server while the leader dies",
        Step(Do.KILL, "leader"), Step(Do.NATS, ms=1_000), _wait(2_000), evidence=_FAILOVER,
    ),
)  # fmt: skip

_DISKS: Final = (
    _story(
        "fill the leader's disk", Step(Do.FILL, "leader"), _wait(_DOWN_MS), Step(Do.FREE, "leader"),
        evidence=(Evidence.STALL,), needs=(Need.SMALL_DISKS,),
    ),
    _story(
        "fill a follower's disk", Step(Do.FILL, "f1"), _wait(_DOWN_MS), Step(Do.FREE, "f1"),
        needs=(Need.SMALL_DISKS,),
    ),
    _story(
        "wipe a follower's disk",
        Step(Do.KILL, "f1"), Step(Do.WIPE, "f1"), Step(Do.START, "f1"), _wait(1_000),
        evidence=_SHRINK,
    ),
    _story(
        "wipe the leader's disk",
        Step(Do.KILL, "leader"), Step(Do.WIPE, "leader"), Step(Do.START, "leader"), _wait(1_000),
        evidence=_FAILOVER,
    ),
)  # fmt: skip

# Disks and processes that come back as they were, or as somebody else's: of one replica at a time.
_FORGETTING: Final = (
    _story(
        "restored disk",
        Step(Do.COPY, "leader"), _acks(500), Step(Do.KILL, "all"), Step(Do.RESTORE, "leader"),
        Step(Do.START, "all"), _wait(1_500),
        evidence=_FAILOVER,
    ),
    _story(
        "restored disk of a follower",
        Step(Do.COPY, "f1"), _acks(500), Step(Do.KILL, "all"), Step(Do.RESTORE, "f1"),
        Step(Do.START, "all"), _wait(1_500),
        evidence=_FAILOVER,
    ),
    _story(
        "lost partition folder",
        Step(Do.KILL, "all"), Step(Do.LOSE, "leader"), Step(Do.START, "all"), _wait(1_500),
        evidence=_FAILOVER,
    ),
    _story(
        "emptied replica",
        Step(Do.KILL, "all"), Step(Do.EMPTY, "f1"), Step(Do.START, "all"), _wait(1_500),
        evidence=_FAILOVER,
    ),
    _story(
        "emptied replica of the leader, started at once",
        Step(Do.KILL, "leader"), Step(Do.EMPTY, "leader"), Step(Do.START, "leader"), _wait(2_000),
        evidence=_FAILOVER,
    ),
    _story(
        "twin: a copy takes the leader's place, and gives it back",
        Step(Do.COPY, "leader"), _wait(2_000), Step(Do.KILL, "leader"), Step(Do.SWAP, "leader"),
        Step(Do.START, "leader"), _wait(_DOWN_MS), Step(Do.SYNC, ms=30_000),
        Step(Do.KILL, "leader"), Step(Do.SWAP, "leader"), Step(Do.START, "leader"), _wait(1_500),
        evidence=_FAILOVER,
    ),
    _story(
        "twin: every broker dies while a copy is in the leader's place",
        Step(Do.COPY, "leader"), _wait(2_000), Step(Do.KILL, "leader"), Step(Do.SWAP, "leader"),
        Step(Do.START, "leader"), _wait(1_000), Step(Do.KILL, "all"), Step(Do.SWAP, "leader"),
        Step(Do.START, "all"), _wait(1_500),
        evidence=_FAILOVER,
    ),
    _story(
        "unclean below the table",
        Step(Do.KILL, "f1"), Step(Do.APART, "f1", ms=20_000), Step(Do.KILL, "leader"),
        Step(Do.KILL, "f2"), Step(Do.START, "f1"), _wait(1_500), Step(Do.ELECT, "f1"),
        _wait(2_000), Step(Do.FLUSH), Step(Do.START, "all"), _wait(1_500), Step(Do.FLUSH),
        evidence=_FAILOVER, brokers_min=5,
    ),
    _story(
        "slept through",
        Step(Do.PAUSE, "leader"), _wait(_DOWN_MS), Step(Do.FLUSH), _wait(1_000), Step(Do.FLUSH),
        Step(Do.RESUME, "leader"), _wait(2_000), Step(Do.FLUSH),
        evidence=_FAILOVER,
    ),
    _story(
        "raft folder partly lost",
        Step(Do.KILL, "controller"), _wait(_DOWN_MS), Step(Do.LOSE_RAFT, "controller"),
        Step(Do.START, "controller"), _wait(2_000),
        evidence=_CONTROLLER,
    ),
    _story(
        "raft folder partly lost while no broker runs",
        Step(Do.KILL, "all"), Step(Do.LOSE_RAFT, "f1"), Step(Do.START, "all"), _wait(2_000),
        evidence=_FAILOVER,
    ),
)  # fmt: skip

_OPERATORS: Final = (
    _story("transfer the leadership", Step(Do.TRANSFER, to="f1"), _wait(500), evidence=_FAILOVER),
    _story(
        "transfer the leadership back and forth",
        *(one for to in ("f1", "leader", "f2", "leader") for one in (
            Step(Do.SYNC, ms=10_000), Step(Do.TRANSFER, to=to), _wait(150),
        )),
        evidence=_FAILOVER,
    ),
    _story(
        "reassign a replica", Step(Do.REASSIGN, "f1"), Step(Do.SYNC, ms=30_000),
        evidence=(Evidence.MOVED,), brokers_min=4,
    ),
    _story(
        "reassign a replica while the leader dies",
        Step(Do.REASSIGN, "f1"), _wait(50), Step(Do.KILL, "leader"), _wait(2_000),
        evidence=_FAILOVER, brokers_min=4,
    ),
    _story(
        "kill the leader while it ships", Step(Do.FLUSH), Step(Do.KILL, "leader"), _wait(2_000),
        evidence=_FAILOVER,
    ),
    _story("stop the leader gracefully", Step(Do.STOP, "leader"), _wait(1_000), evidence=_FAILOVER),
)  # fmt: skip


def _access(name: str, *steps: Step, evidence: tuple[Evidence, ...] = ()) -> Story:
    seen = (Evidence.IN_FORCE, *evidence)
    return _story(f"access: {name}", *steps, evidence=seen, needs=(Need.ACCESS,))


def _change(what: str) -> Step:
    return Step(Do.ACCESS, what=what)


_TAKE, _GIVE = _change("take the guest's grants"), _change("give the guest its grants")
# The guest of guards.py, beside all the load.
_GUARDED: Final = (
    _access("revoke a principal, and take it back", _TAKE, _wait(500), _GIVE),
    _access(
        "revoke a principal while the leader dies",
        Step(Do.KILL, "leader"), _TAKE, _wait(1_000), Step(Do.START, "leader"), _GIVE,
    ),
    _access(
        "revoke a principal while the controller dies",
        Step(Do.KILL, "controller"), _wait(2_000), _TAKE, Step(Do.START, "controller"), _GIVE,
        evidence=_CONTROLLER,
    ),
    _access("a writer may only read from now on",
            _change("take the guest's right to publish"), _wait(500), _GIVE),
    _access("replace a token under load", _change("replace the guest's token"), _wait(500)),
    _access("set a quota, and remove it",
            _change("limit the guest"), _wait(500), _change("end the guest's limit")),
    _access("replace the certificates of every door",
            _change("replace the certificates"), _wait(1_000)),
    _access("replace the certificates, and restart the leader on them",
            _change("replace the certificates"), Step(Do.STOP, "leader"), _wait(200),
            Step(Do.START, "leader"), Step(Do.SYNC, ms=30_000), evidence=_FAILOVER),
)  # fmt: skip


def _jetstream(name: str, first: tuple[str, str], third: str, rest: tuple[str, str]) -> Story:
    """Pause two of five, power-fail a third, restart it, resume the two, pause the others.

    So JetStream 2.12.1 lost what it had acknowledged (nats-server #7567): a quorum forms of two
    that had slept and one that had forgotten. A kill -9 stands for the power failure: the page
    cache survives it, so the forgetting itself is the simulator's to show.
    """
    return _story(
        name,
        *(Step(Do.PAUSE, who) for who in first), _wait(2_000),
        Step(Do.KILL, third), _wait(50), Step(Do.START, third),
        *(Step(Do.RESUME, who) for who in first),
        *(Step(Do.PAUSE, who) for who in rest), _wait(_DOWN_MS),
        *(Step(Do.RESUME, who) for who in rest), _wait(500),
        brokers_min=5,
    )  # fmt: skip


JETSTREAM_LOST_DATA: Final = "the scenario in which JetStream lost data"
_JETSTREAM: Final = (
    _jetstream(JETSTREAM_LOST_DATA, ("f1", "f2"), "f3", ("f4", "leader")),
    _jetstream(f"{JETSTREAM_LOST_DATA}, leader paused", ("leader", "f1"), "f2", ("f3", "f4")),
    _jetstream(f"{JETSTREAM_LOST_DATA}, leader fails", ("f1", "f2"), "leader", ("f3", "f4")),
)

STORIES: Final = (
    *_PROCESSES, *_NETWORK, *_DISKS, *_FORGETTING, *_OPERATORS, *_GUARDED, *_JETSTREAM,
)  # fmt: skip
# What a broker refuses to start on, by name, until an operator gives it an empty disk.
REFUSED: Final = frozenset({Do.LOSE_RAFT})
GROUPS: Final = frozenset({"all", "others", "rest"})
OUTSIDERS: Final = frozenset({"clients", "nats"})
