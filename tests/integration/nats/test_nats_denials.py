"""Permissions of the broker's NATS user that change while the broker is connected."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.config import NatsConfig
from broker.errors import InvalidStreamError
from broker.model.secret import Secret
from simkit.brokers.ingest_rig import IngestRig
from simkit.servers.natsproc import NatsProcess, RawNats

pytestmark = pytest.mark.integration


def denying(*, subscribe: str = "none", publish: str = "none") -> str:
    """Return settings with a broker that may not do this, and a publisher that may do all."""
    return (
        'no_auth_user: "all", authorization { users: [ { user: "all", password: "a" }, '
        '{ user: "u", password: "p", permissions: { '
        f'subscribe: {{ deny: ["{subscribe}"] }}, publish: {{ deny: ["{publish}"] }} }} }} ] }}'
    )


def broker_of(server: NatsProcess) -> NatsConfig:
    """Return the settings of the broker's user."""
    return NatsConfig(url=server.url, user="u", password=Secret("p"))


def test_a_subject_that_is_granted_again_is_subscribed_without_a_reconnect(tmp_path: Path) -> None:
    """A denial holds for the subscription that was denied, and for no later one."""
    with (
        NatsProcess(tmp_path, settings=denying(subscribe="secret")) as server,
        IngestRig(broker_of(server)) as rig,
    ):
        with pytest.raises(InvalidStreamError, match="secret"):
            rig.add_stream("before", subject="secret")
        server.reload(denying(subscribe="other"))
        rig.wait(lambda: is_open(broker_of(server), "secret"), "the server to read its settings")
        rig.add_stream("after", subject="secret", puback=True)
        with RawNats(server.port) as client:
            client.subscribe("in.>")
            client.publish("secret", b"x", reply="in.1")
            assert client.next_json()["seq"] == 1
        assert rig.transport.counters.connects == 1


def is_open(config: NatsConfig, subject: str) -> bool:
    """Tell whether a new connection may subscribe."""
    with IngestRig(config) as other:
        try:
            other.add_stream("probe", subject=subject)
        except InvalidStreamError:
            return False
        return True


def test_what_is_denied_later_is_logged_and_counted(tmp_path: Path) -> None:
    """A permission that is taken away, and an answer that may not be published."""
    with (
        NatsProcess(tmp_path, settings=denying()) as server,
        IngestRig(broker_of(server)) as rig,
        capture_logs() as lines,
    ):
        counts = rig.transport.counters.server_errors
        rig.add_stream("foo", puback=True)
        rig.add_stream("bar", puback=True)
        server.reload(denying(subscribe="bar", publish="in.>"))
        rig.wait(lambda: counts.get("denied_subscription") == 1, "the denial of a subscription")
        with RawNats(server.port) as client:
            client.publish("foo", b"x", reply="in.1")
            rig.wait(lambda: counts.get("denied_publish") == 1, "the denial of an answer")
        assert rig.values("foo") == [b"x"], "the record is stored although nobody is told"
        told = [(one["kind"], one["subject"]) for one in lines if one["event"] == "nats_denied"]
        assert told == [("subscription", "bar"), ("publish", "in.1")]
        assert rig.transport.counters.connects == 1
