"""Names that are far too long, from strangers and from principals: the audit stays whole.

A stranger needed one call to make ``headwater audit verify`` fail for ever (100 KB at Flight), or
to end the stream of a broker's audit (50 MB at Liftbridge's API).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from pyarrow import flight
from typer.testing import CliRunner

from broker.codec.audit_record import RECORD_BYTES_MAX
from broker.model.access import AUDIT_STREAM
from broker.wire.liftbridge import api_pb2 as api
from broker.wire.liftbridge.api_pb2_grpc import APIStub
from clusterkit.lift_calls import until
from headwater.cli.main import app
from headwater.client import Client
from headwater.local.embedded import free_port, start_up
from headwater.local.owner_token import token_path
from headwater.local.runtime_file import DEFAULT_DATA_DIR, RuntimeFile

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CALL_S: Final = 60
UNKNOWN, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
TOO_LARGE: Final = grpc.StatusCode.RESOURCE_EXHAUSTED
REFUSALS: Final = ("UnauthenticatedError", "AccessDeniedError")
HUGE: Final = "é" * 25_000_000  # more than a request without a record may have
WIDE: Final = "é" * 100_000  # 600 KB as JSON, more than a record of the audit may have
LONG: Final = "x." * 50_000


def create_by_flight(up: RuntimeFile, token: str | None, name: str) -> str:
    """Ask for a stream on a long subject; return why not."""
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    options = flight.FlightCallOptions(timeout=float(CALL_S), headers=headers)
    body = json.dumps({"name": name, "config": {"subject": LONG}}).encode()
    with flight.FlightClient(up.flight) as client, pytest.raises(flight.FlightError) as refused:
        list(client.do_action(flight.Action("create_stream", body), options))
    told: str = refused.value.extra_info.decode()
    assert len(str(refused.value) + told) < 4_000
    return told


def by_liftbridge(stub: Any, token: str | None, call: str, request: Any) -> grpc.StatusCode:
    """Make a call of Liftbridge's API; return the status of its refusal."""
    metadata = [] if token is None else [("authorization", f"Bearer {token}")]
    with pytest.raises(grpc.RpcError) as refused:
        getattr(stub, call)(request, timeout=CALL_S, metadata=metadata)
    code: grpc.StatusCode = refused.value.code()
    return code


def ask_with_long_names(up: RuntimeFile, stub: Any, tokens: dict[str, str], bob: str) -> None:
    """Make the calls of the attack and their like; each one is refused. Nothing is bob's."""
    assert "UnauthenticatedError" in create_by_flight(up, None, "stranger")
    huge, wide = (api.CreateStreamRequest(name=name) for name in (HUGE, WIDE))
    assert by_liftbridge(stub, None, "CreateStream", wide) is UNKNOWN  # before its name is read
    assert by_liftbridge(stub, bob, "CreateStream", wide) is DENIED
    for who, token in tokens.items():  # an owner may not, either: nothing has such a name
        assert by_liftbridge(stub, token, "CreateStream", huge) is TOO_LARGE
        assert "AccessDeniedError" in create_by_flight(up, token, who)
        for call, request in (
            ("CreateStream", api.CreateStreamRequest(name="s", subject=LONG)),
            ("Publish", api.PublishRequest(stream=LONG)),
            ("PublishToSubject", api.PublishToSubjectRequest(subject="a", ackInbox=LONG)),
            ("JoinConsumerGroup", api.JoinConsumerGroupRequest(groupId=LONG, streams=["s"])),
            ("JoinConsumerGroup", api.JoinConsumerGroupRequest(groupId="g", streams=["s"] * 5_000)),
        ):
            assert by_liftbridge(stub, token, call, request) is DENIED


def test_no_name_keeps_the_audit_from_being_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal is a record, later ones are stored, and the lines of the log are bounded."""
    for name in ("HEADWATER_TOKEN", "HEADWATER_TOKEN_FILE", "HEADWATER_SERVER"):
        monkeypatch.setenv(name, "")  # commands change the environment
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    port = free_port()
    monkeypatch.setenv("HEADWATER_LIFTBRIDGE_PORT", str(port))
    monkeypatch.setenv("HEADWATER_LIFTBRIDGE_ENABLED", "true")
    data = tmp_path / DEFAULT_DATA_DIR
    with start_up(data, "--guarded", "--nats-port", "0", "--flight-port", "0", "--http-port", "0"):
        up = RuntimeFile.read(data)
        run("token", "create", "ann", "-o", "ann.token")
        run("token", "create", "bob", "-o", "bob.token")
        bob = (tmp_path / "bob.token").read_text().strip()
        run("access", "grant", "ann", "owner", "--stream", "*")
        run("access", "grant", "ann", "owner", "--subject", ">")
        run("access", "grant", "ann", "owner", "--group", "*")
        files = {"ann": tmp_path / "ann.token", "owner": token_path(data)}
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = APIStub(channel)  # type: ignore[no-untyped-call]  # generated
            tokens = {who: file.read_text().strip() for who, file in files.items()}
            ask_with_long_names(up, stub, tokens, bob)
            last = api.DeleteStreamRequest(name="the-last-one")
            assert by_liftbridge(stub, bob, "DeleteStream", last) is DENIED
        with Client(up.flight) as client:
            until(stored(client, "stream:the-last-one"), "the last note is stored", CALL_S)
            found = records(client)
        refused = [one for one in found if one["result"] in REFUSALS]
        assert len(refused) == 3 + 2 * 6 + 1
        told = json.dumps(refused)
        assert f"({len(WIDE)} characters, SHA-256 " in told
        assert f"({len(LONG)} characters, SHA-256 " in told
        assert " more" in told
        verified = json.loads(run("audit", "verify", "--json"))
        assert (verified["problems"], verified["not_kept"]) == ([], 0)
        takes_less_at_a_time(up, port, bob)
    lines = (data / "up.log").read_text().splitlines()
    assert max(len(line) for line in lines) < RECORD_BYTES_MAX


def takes_less_at_a_time(up: RuntimeFile, port: int, bob: str) -> None:
    """Show that notes which fit into no segment together, or alone, keep no others waiting."""
    streams = [f"{number}-{'x' * 500}" for number in range(15)]
    calls = [api.DeleteStreamRequest(name="one-of-many")] * 30
    with Client(up.flight) as client, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = APIStub(channel)  # type: ignore[no-untyped-call]  # generated
        client.alter_stream(AUDIT_STREAM, segment_bytes_max=4_096)
        joins = api.JoinConsumerGroupRequest(groupId="g", streams=streams)
        asked = {"timeout": CALL_S, "metadata": [("authorization", f"Bearer {bob}")]}
        waiting = [stub.DeleteStream.future(one, **asked) for one in calls]
        waiting.append(stub.JoinConsumerGroup.future(joins, **asked))
        assert {one.code() for one in waiting} == {DENIED}
        last = api.DeleteStreamRequest(name="the-very-last")
        assert by_liftbridge(stub, bob, "DeleteStream", last) is DENIED
        until(stored(client, "stream:the-very-last"), "the last note is stored", CALL_S)
        found = [one["resources"] for one in records(client)]
    assert found.count(["stream:one-of-many"]) == 30
    assert sum(one[0].startswith("not kept here: ") for one in found if one) == 1
    verified = json.loads(run("audit", "verify", "--json"))
    assert (verified["problems"], verified["not_kept"]) == ([], 0)


def run(*words: str) -> str:
    """Run a command of the owner; return what it prints."""
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    os.environ.pop("HEADWATER_TOKEN_FILE", None)
    return result.output


def records(client: Client) -> list[dict[str, Any]]:
    """Return the records of the audit."""
    batches = [one.batch for one in client.fetch(AUDIT_STREAM)]
    return [json.loads(value) for one in batches for value in one.column("value").to_pylist()]


def stored(client: Client, resource: str) -> Callable[[], bool]:
    """Return what tells whether a note about a resource is stored."""
    return lambda: any(resource in one["resources"] for one in records(client))
