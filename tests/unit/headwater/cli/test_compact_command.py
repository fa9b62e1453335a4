"""``headwater stream compact`` over real Flight, and what ``list`` says of compacted streams.

The command asks each broker until all is over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.errors import InvalidRequestError, OverloadedError
from broker.model.cluster_status import (
    BrokerStatus,
    ClusterStatus,
    PartitionInfo,
    ReplicaCompaction,
)
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from broker.ports.api import PartitionStanding
from headwater.cli.main import app
from simkit.brokers.memory_broker import FakeClock, MemoryBroker
from simkit.replacing import replaced

Run = Callable[..., Any]

DONE = ReplicaCompaction(
    broker="a", stream="s", partition=0, state="compacted", end=40, segments=2, removed_count=31,
    freed_bytes=2048,
)  # fmt: skip


class Operator:
    """The operators' side of one broker; each answer is taken from a list, the last one stays."""

    def __init__(self, name: str, *answers: list[ReplicaCompaction] | Exception) -> None:
        self.name = name
        self.answers = list(answers)
        self.asked: list[tuple[str, tuple[int, ...], str]] = []
        self.told: ClusterStatus | None = None

    def status(self, *, confirm_ms: int = 1_000) -> ClusterStatus:
        """Return the status of the cluster."""
        assert self.told is not None
        return self.told

    def compact(
        self, name: str, partitions: Sequence[int], *, ticket: str
    ) -> list[ReplicaCompaction]:
        """Return or raise the next answer."""
        self.asked.append((name, tuple(partitions), ticket))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def _place(partition: int, replicas: tuple[str, ...]) -> PartitionInfo:
    return PartitionInfo(
        stream="s", stream_uuid="u", partition=partition, status="online", leader=replicas[0],
        candidate=None, leader_epoch=1, partition_epoch=1, replicas=replicas, isr=replicas,
        eligible=(), min_isr=1, target=(), last_known_leader=None, cold_end=0, losses=(),
    )  # fmt: skip


@pytest.fixture
def compact(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Return a function that runs the command against these brokers."""
    memory = MemoryBroker()
    with ExitStack() as stack:
        stack.callback(memory.close)

        def run(*operators: Operator, options: Sequence[str] = (), fenced: str = "") -> Any:
            addresses = {}
            for one in operators:
                config = FlightServiceConfig(host="127.0.0.1", port=0)
                service = FlightService(memory, FakeClock(), config, operations=one)  # type: ignore[arg-type]
                service.start()
                stack.callback(service.close)
                addresses[one.name] = f"grpc://127.0.0.1:{service.port}"
            names = [*addresses, *([fenced] if fenced else [])]
            told = ClusterStatus(
                cluster="hw", told_by="a", alone=len(names) == 1, confirmed=True, controller="a",
                controllers=(), feature_level=5,
                brokers=tuple(
                    BrokerStatus(
                        broker=one, epoch=1, fenced=one == fenced, stopping=False,
                        addresses={"flight": addresses.get(one, "grpc://127.0.0.1:1")},
                        controller=False, leads=0, replicas=0, features_max=5,
                    )
                    for one in names
                ),
                partitions=(_place(0, tuple(names)),),
            )  # fmt: skip
            for one in operators:
                one.told = told
            monkeypatch.setenv("HEADWATER_SERVER", next(iter(addresses.values())))
            return CliRunner().invoke(app, ["stream", "compact", "s", *options])

        yield run


def test_each_replica_has_a_line(compact: Run) -> None:
    """The brokers are asked again, with the same ticket, until each has said a last word."""
    runs = replace(DONE, broker="b", state="running", end=0)
    a = Operator("a", [DONE])
    b = Operator("b", [runs], [replace(DONE, broker="b", reason="a lease holds these records")])
    result = compact(a, b)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "0 a 31 2.0 KiB 40 compacted" in text
    assert "0 b 31 2.0 KiB 40 compacted; not from 40 on: a lease holds these records" in text
    assert len(a.asked) == 1
    assert len({ticket for _, _, ticket in a.asked + b.asked}) == 1


def test_json_has_every_field(compact: Run) -> None:
    """And one partition may be chosen."""
    a = Operator("a", [DONE])
    result = compact(a, options=["--partition", "0", "--json"])
    assert ReplicaCompaction.from_dict(json.loads(result.stdout)) == DONE
    assert a.asked[0][:2] == ("s", (0,))


def test_a_replica_that_is_not_reached_is_told_after_the_others(compact: Run) -> None:
    """A fenced broker at once, a busy one after some tries; then the command has failed."""
    busy = Operator("b", OverloadedError("too many wait"))
    result = compact(Operator("a", [DONE]), busy, fenced="c")
    assert result.exit_code == 3
    text = " ".join(result.stdout.split())
    assert "0 a 31" in text
    assert "failed: too many wait" in text
    assert "failed: broker c is fenced" in text
    assert "2 of 3 logs of s" in " ".join(result.stderr.split())
    assert len(busy.asked) == 3


def test_what_every_broker_refuses_is_the_error(compact: Run) -> None:
    """A stream without the setting; a partition that is not there."""
    off = InvalidRequestError("its setting compact is off")
    result = compact(Operator("a", off), Operator("b", off))
    assert result.exit_code == 2
    assert "setting compact is off" in result.stderr
    result = compact(Operator("a", [DONE]), options=["--partition", "1"])
    assert (result.exit_code, "UnknownPartitionError" in result.stderr) == (2, True)


def test_time_that_is_up_is_told(compact: Run) -> None:
    """The brokers go on, so a later run with another ticket does no harm."""
    runs = replace(DONE, state="running")
    result = compact(Operator("a", [runs]), options=["--timeout", "1ms"])
    assert result.exit_code == 3
    assert "takes longer than --timeout" in " ".join(result.stderr.split())


@pytest.mark.parametrize(("left", "told"), [(4, "4 of 6 offsets"), (6, "6"), (None, "at most 6")])
def test_records_and_offsets_are_told_apart(run: Run, left: int | None, told: str) -> None:
    """Where key compaction removed records for good; a table would have all of them."""
    for options in (("compacted", "--compact", "--no-tiering"), ("tiered", "--compact")):
        assert run("stream", "create", *options).exit_code == 0

    def standing(_: MemoryBroker, name: str, partition: int) -> PartitionStanding:
        here = left if name == "compacted" else None
        return PartitionStanding(Offset(0), Offset(6), LeaderEpoch(1), here)

    with replaced(MemoryBroker, "standing", standing):
        rows = [line.split() for line in run("stream", "list").stdout.splitlines()[1:]]
        assert f" {told} " in " ".join(rows[0])
        assert " 6 " in " ".join(rows[1])
        found = [json.loads(one) for one in run("stream", "list", "--json").stdout.splitlines()]
        assert [one["records_count"] for one in found] == [left, 6]
        assert [one["offsets_count"] for one in found] == [6, 6]
        described = json.loads(run("stream", "describe", "compacted", "--json").stdout)
        (part,) = described["partitions"]
        assert (part["records_left"], part["offsets_count"]) == (left, 6)


def test_expired_records_are_told(run: Run, broker: MemoryBroker) -> None:
    """Beside those that can be read, in all partitions; purged ones are not among them."""
    assert run("stream", "create", "orders", "--partitions", "2").exit_code == 0
    for number, (purged, start) in enumerate(((3, 10), (5, 5))):
        handle = broker.partitions.handle("orders", number)
        handle.purged_end, handle.remote_start = Offset(purged), Offset(start)
    assert "0, 7 expired" in " ".join(run("stream", "list").stdout.split())
    (found,) = run("stream", "list", "--json").stdout.splitlines()
    assert json.loads(found)["expired_count"] == 7
