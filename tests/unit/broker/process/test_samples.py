"""A broker's own counters as samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from broker.process.metrics import NatsErrorSample
from broker.process.samples import BrokerSamples


def test_errors_of_the_nats_server_are_told_by_connection_and_kind() -> None:
    """Of the connections of the broker itself, and of that between the brokers of a cluster."""
    samples = BrokerSamples(cast(Any, None), None)
    counts = {"denied_subscription": 1}
    samples.nats_errors["ingest"] = counts
    counts["denied_publish"] = 4
    samples.cluster = cast(Any, SimpleNamespace(nats_errors={"replication": {"other": 2}}))
    assert samples.nats_error_samples() == [
        NatsErrorSample(connection="ingest", kind="denied_publish", server_errors_total=4),
        NatsErrorSample(connection="ingest", kind="denied_subscription", server_errors_total=1),
        NatsErrorSample(connection="replication", kind="other", server_errors_total=2),
    ]
