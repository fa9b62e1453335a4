"""go-liftbridge v2.4.0, unmodified: each scenario of tests/peers/go, by name.

`make test-liftbridge` runs all of them, `make test` some quick ones on one broker.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from clusterkit.foreign_program import play
from clusterkit.lift_brokers import LiftCluster, LiftServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
]

ALL: Final = "HEADWATER_TEST_LIFTBRIDGE" in os.environ
QUICK: Final = (
    "ack-policies",
    "create",
    "cursors",
    "envelope-ack",
    "groups",
    "half-close",
    "handshake",
    "many-messages",
    "plain-nats",
    "publish-async",
    "starts-stops",
)
SINGLE: Final = (
    "activity",
    "auto-pause",
    "bad-envelope",
    "compaction",
    "delete-during-subscribe",
    "encryption",
    "event-timestamps",
    "group-consumer",
    "group-expire",
    "group-fence",
    "group-refusals",
    "load-balance",
    "metadata-unknown",
    "offset-overflow",
    "offset-underflow",
    "optimistic-concurrency",
    "partitions",
    "pause-during-subscribe",
    "publish-deadline",
    "publish-readonly",
    "publish-to-subject",
    "readonly-during-subscribe",
    "resume",
    "resume-all",
    "retention-age",
    "retention-bytes",
    "retention-messages",
    "reverse",
    "several-streams",
    "stop-refusals",
    "too-large",
    "wildcard",
)
CLUSTER: Final = (
    "any-broker",
    "coordinator-loss",
    "cursor-failover",
    "follower-read",
    "isr",
    "leader-kill",
    "not-leader",
    "two-leader-changes",
)


def params(names: tuple[str, ...], *, whole: bool) -> list[object]:
    """Return the scenarios as parameters; those of the whole run are skipped elsewhere."""
    later = pytest.mark.skip(reason="`make test-liftbridge` runs it")
    return [pytest.param(name, marks=[later] if whole and not ALL else []) for name in names]


def test_every_scenario_is_named_here(go_program: Path) -> None:
    """The lists above are what the program has."""
    told = subprocess.run([go_program, "list"], capture_output=True, text=True, check=True)
    found = {tuple(line.split()) for line in told.stdout.splitlines()}
    here = {("single", name) for name in QUICK + SINGLE} | {("cluster", name) for name in CLUSTER}
    assert found == here


@pytest.mark.parametrize(
    "scenario", [*params(QUICK, whole=False), *params(SINGLE, whole=True)], ids=str
)
def test_one_broker(scenario: str, go_program: Path, server: LiftServer) -> None:
    """A scenario on `headwater up`."""
    play([str(go_program), "-addrs", server.address, "-nats", server.nats, scenario])


@pytest.mark.parametrize("scenario", params(CLUSTER, whole=True), ids=str)
def test_three_brokers(scenario: str, go_program: Path, cluster: LiftCluster) -> None:
    """A scenario on three brokers, some of which are killed on the way."""
    where = ["-addrs", cluster.addresses, "-nats", cluster.cluster.nats_url]
    play([str(go_program), *where, scenario], cluster.do)
    cluster.cluster.heal()
