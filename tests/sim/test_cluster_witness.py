"""The judge of real clusters, alone over simulated ones: what clients see is enough.

The stepwise oracle is muted here. It finds more and sooner, for it looks inside; but a mistake that
costs anybody a record must show in the history and the final reads as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from broker.errors import HeadwaterError
from checkkit.anomalies import Anomaly, Verdict
from simkit.cluster import sim as cluster_sim
from simkit.cluster.clients import Reader
from simkit.cluster.mutants import MUTANTS
from simkit.cluster.oracle import Oracle
from simkit.cluster.sim import ClusterSim

_MUTED = (
    (Oracle, ("written", "started_leading", "shown", "acked", "client_heard", "check")),
    (Oracle, ("check_end", "_copies")),
    (Reader, ("_read",)),
)


def _deaf(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with suppress(AssertionError, IndexError):
            return method(*args, **kwargs)

    return call


@contextmanager
def _oracle_muted() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_sim, "HEAL_MS_MAX", 8_000)  # a broken cluster need not heal
        for owner, names in _MUTED:
            for name in names:
                patch.setattr(owner, name, _deaf(owner.__dict__[name]))
        yield


def _judge(seed: int) -> Verdict:
    sim = ClusterSim(seed)
    with suppress(AssertionError, HeadwaterError, OSError, LookupError, TypeError):
        sim.begin()
        sim._trouble = True
        sim.run_for(sim.world.rng.choice((1500, 3000, 4500)))
        sim.heal()
    return sim.witness.judge(sim.final_reads())


@pytest.mark.parametrize(
    ("mutant", "kinds"),
    [
        ("forget_retries", {Anomaly.DOUBLED}),
        ("write_what_comes", {Anomaly.DIVERGED, Anomaly.MOVED, Anomaly.LOST}),
        ("same_epoch_after_restart", {Anomaly.TWO_LEADERS}),
        ("no_alignment", {Anomaly.MOVED, Anomaly.LOST, Anomaly.WITHDRAWN}),
        ("expand_on_time", {Anomaly.LOST, Anomaly.WITHDRAWN}),
        ("truncate_to_high_watermark", {Anomaly.LOST, Anomaly.WITHDRAWN}),
    ],
)
def test_the_judge_alone_sees_a_mutant(mutant: str, kinds: set[Anomaly]) -> None:
    """Replication with a known mistake is found out by its clients, within forty seeds."""
    with _oracle_muted(), MUTANTS[mutant]():
        assert any(kinds & _judge(seed).counts.keys() for seed in range(40)), mutant


def test_the_judge_alone_passes_what_is_right() -> None:
    """With the oracle muted, and without a mutant, nothing is found."""
    with _oracle_muted():
        for seed in range(12):
            verdict = _judge(seed)
            assert verdict.ok, f"seed {seed}: {verdict}"


def test_the_judge_has_something_to_judge() -> None:
    """A seed gives it acks, polls and rows; and a record that all replicas lose is missed."""
    sim = ClusterSim(3, brokers=3, factor=3, min_isr=2, faults=frozenset())
    sim.begin()
    sim.run_for(1500)
    sim.heal()
    sim.look()
    history = sim.witness.history
    assert history.acked_count > 10
    assert len(history.poll_rows) > 10
    finals = sim.final_reads()
    assert len(finals) == 3
    for name in sim.one.replicas:
        log = sim.brokers[name].log
        log.truncate(type(log.facts().log_end)(log.facts().log_end - 1))
    counts = sim.witness.judge(sim.final_reads()).counts
    assert Anomaly.LOST in counts or Anomaly.WITHDRAWN in counts
