"""Credentials for tables: a reader without any of its own reads its streams' tables, and no others.

moto keeps the policy of a session and does not look at it, so here the role itself gets the policy
of each session; moto then checks the actions and resources of every request.
"""

from __future__ import annotations

import json
import secrets
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import boto3
import pytest
from typer.testing import CliRunner

import headwater
from broker.adapters.access.aws_sts import AwsSts
from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.codec.checksum import crc32c
from broker.core.access.static_tokens import TOKEN_BYTES, make_token, split_token
from broker.errors import (
    AccessDeniedError,
    NotShippedError,
    RemoteTierUnavailableError,
)
from broker.model.access import Grant
from broker.model.cut import Cut
from broker.model.offsets import Offset
from broker.model.secret import Secret
from broker.model.stream import Stream
from broker.model.table_credentials import StorePlace, TemporaryKeys
from broker.model.tiering import TableState
from broker.runtime.api.access import Access
from broker.runtime.api.table_credentials import VendedCredentials
from headwater.cli.access import app
from headwater.client import Client
from headwater.client.table_credentials import table_credentials
from headwater.local.embedded import EmbeddedServer, moto_environment
from headwater.reads.table_access import table_location
from simkit.brokers.memory_broker import numbered
from simkit.servers.moto_iam import check_from_now, checking_moto, iam_of, make_user
from simkit.tier.lake_broker import LakeBroker
from tiering.keys.snapshot import key_snapshot_uri
from tiering.store.location import StoreConfig
from tiering.store.opening import open_for_reading, open_store

pytestmark = pytest.mark.integration

BUCKET: Final = "my-bucket"
ROLE: Final = "arn:aws:iam::123456789012:role/readers"
EVERYTHING: Final = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}
TRUST: Final = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}],
}
OWN_CREDENTIALS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE")


class Sessions:
    """STS of moto, with a role that may do what its newest session may."""

    def __init__(self, address: str, keys: Mapping[str, str]) -> None:
        given: dict[str, Any] = {name.lower(): value for name, value in keys.items()}
        self._iam = boto3.client("iam", endpoint_url=address, region_name="us-east-1", **given)
        self._sts = AwsSts(ROLE, ttl_s=900, url=address, region="us-east-1")
        self._address = address
        self.opened: list[str] = []
        self.policy = ""  # of the newest session
        self.early_us = 0  # how much sooner the next keys say that they end

    def open(self, name: str, policy: str) -> TemporaryKeys:
        """See ``RoleSessions.open``."""
        self._iam.put_role_policy(RoleName="readers", PolicyName="p", PolicyDocument=policy)
        self.opened.append(name)
        self.policy = policy
        keys = self._sts.open(name, policy)
        return replace(keys, expires_us=keys.expires_us - self.early_us)

    def policies_ignored_by_moto(self) -> list[str]:
        """Return the policies that STS was given, one for each session."""
        with urllib.request.urlopen(f"{self._address}/moto-api/data.json") as answer:
            return [one["policy"] for one in json.load(answer)["sts"]["AssumedRole"]]


@dataclass
class Vending:
    """A broker whose lake is on moto, and who opened sessions there."""

    broker: LakeBroker
    sessions: Sessions
    server: str
    tokens: dict[str, Secret]

    def client(self, principal: str) -> Client:
        """Return a client with the token of a principal."""
        return Client(self.server, token=self.tokens[principal])


@pytest.fixture(scope="module")
def vending(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vending]:
    """Give the streams shop and payroll with tables, and young without; ``reader`` reads shop."""
    folder = tmp_path_factory.mktemp("vending")
    with checking_moto(folder, bucket=BUCKET) as moto, pytest.MonkeyPatch.context() as patch:
        keys = make_user(moto, "broker", json.dumps(EVERYTHING))
        iam_of(moto).create_role(RoleName="readers", AssumeRolePolicyDocument=json.dumps(TRUST))
        check_from_now(moto)
        for name, value in keys.items():
            patch.setenv(name, value)  # the broker's, which has STS from them
        with _serving(moto, keys) as served:
            for name in OWN_CREDENTIALS:
                patch.delenv(name, raising=False)  # from here on nobody finds any
            patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            patch.setenv("HOME", str(folder))
            yield served


@contextmanager
def _serving(moto: EmbeddedServer, keys: Mapping[str, str]) -> Iterator[Vending]:
    location = StoreConfig.from_env(
        f"s3://{BUCKET}/headwater", {**moto_environment(moto.address), **keys}
    )
    broker, sessions = LakeBroker(location), Sessions(moto.address, keys)
    access = Access(
        broker.metadata, broker.clock, enabled=True, namespace="default", admins=["admin"]
    )
    credentials = VendedCredentials(
        broker.streams.get,
        partial(_state, broker),
        partial(key_snapshot_uri, broker.lake),
        sessions,
        role_arn=ROLE,
        place=StorePlace(
            endpoint=location.endpoint, region=location.region, path_style=location.path_style
        ),
    )
    service = FlightService(
        broker, broker.clock, FlightServiceConfig(port=0), access=access, credentials=credentials
    )
    service.start()
    tokens = {name: _token(access, name) for name in ("admin", "reader", "stranger")}
    access.grant(
        [Grant(principal="reader", kind="stream", pattern="shop", actions=("consume", "describe"))]
    )
    found = Vending(broker, sessions, f"grpc://127.0.0.1:{service.port}", tokens)
    try:
        with found.client("admin") as admin:
            for name in ("shop", "payroll", "young"):
                admin.create_stream(name)
                with admin.producer(name) as producer:
                    producer.send(numbered(0, 30)).result(20)
        for name in ("shop", "payroll"):
            broker.ship(name, 0, Offset(20))
        sessions.open("first", json.dumps(EVERYTHING))  # boto3 looks for credentials only once
        sessions.opened.clear()
        yield found
    finally:
        assert service.close(timeout_ms=10_000)
        broker.close()


def _token(access: Access, principal: str) -> Secret:
    made = Secret(make_token(secrets.token_bytes(TOKEN_BYTES)))
    access.create_token(
        *split_token(made.reveal()), principal, expires_us=0, note="", created_by="test"
    )
    return made


def _state(broker: LakeBroker, stream: Stream) -> TableState:
    found, uri = broker.table(stream.name).find(), broker.lake.table_uri(stream)
    version = None if found is None else found.version
    return TableState(table_uri=uri, version=version, ranges={}, files_count=0, files_bytes=0)


def test_a_reader_without_credentials_reads_both_tiers(vending: Vending) -> None:
    """All rows with their certificate; the session has the principal's name."""
    before = len(vending.sessions.opened)
    with vending.client("reader") as client:
        rows, certificate = headwater.read_table("shop", server=client)
        assert rows.num_rows == 30
        assert certificate.partitions[0].cold_count == 20
        assert certificate.reader == certificate.to_dict()["reader"] == "reader"
        headwater.read_table("shop", server=client, latest=True)  # there is no key snapshot
    assert vending.sessions.opened[before:] in (["reader"], [])  # once for all reads of a process
    assert vending.sessions.policies_ignored_by_moto()[-1] == vending.sessions.policy


def test_the_credentials_are_bound_to_the_stream_and_to_reading(vending: Vending) -> None:
    """By each client library: nothing of another stream, and nothing is written or deleted."""
    with vending.client("reader") as client, client_cut(client) as cut:
        at = table_location(client, cut)
        assert at.vended is not None
        others = at.at(f"s3://{BUCKET}/headwater/default/payroll")
        assert not at.may_read(others.uri)
        commit = "_delta_log/00000000000000000000.json"
        for store in (open_for_reading(at), open_store(at)):
            assert commit in [one.key for one in store.list("_delta_log/")]
            assert store.get(commit)
            with pytest.raises(RemoteTierUnavailableError, match="Denied"):
                store.put_if_absent("x", b"x", crc32c=crc32c(b"x"))
        for store in (open_for_reading(others), open_store(others)):
            with pytest.raises(RemoteTierUnavailableError, match="Denied"):
                store.get(commit)
        with pytest.raises(RemoteTierUnavailableError, match="Denied"):
            open_store(at).erase([commit])


@contextmanager
def client_cut(client: Client) -> Iterator[Cut]:
    """Take a cut of shop for a while."""
    cut = client.cut("shop")
    try:
        yield cut
    finally:
        client.drop_lease(cut.lease.lease_id)


def test_who_may_not_consume_gets_none(vending: Vending) -> None:
    """Refusals have their types, and open no session."""
    before = list(vending.sessions.opened)
    with vending.client("reader") as reader, vending.client("stranger") as stranger:
        for client, name in ((reader, "payroll"), (stranger, "shop")):
            with pytest.raises(AccessDeniedError):
                table_credentials(client, name)
    with vending.client("admin") as admin, pytest.raises(NotShippedError):
        table_credentials(admin, "young")
    assert vending.sessions.opened == before


def test_credentials_are_renewed_before_they_end(vending: Vending) -> None:
    """Those with less than five minutes left are not handed out."""
    with vending.client("admin") as client, client_cut(client) as cut:
        vending.sessions.early_us = 700_000_000
        source = table_location(client, cut).vended
        assert source is not None
        first = source()
        vending.sessions.early_us = 0
        second = source()
        assert second.access_key_id != first.access_key_id
        assert source() == second


def test_the_command_prints_them_only_here(vending: Vending, monkeypatch: Any) -> None:
    """As lines of a shell, and as AWS's tools take them; no other text of them shows a secret."""
    monkeypatch.setenv("HEADWATER_SERVER", vending.server)
    monkeypatch.setenv("HEADWATER_TOKEN", vending.tokens["reader"].reveal())
    lines = CliRunner().invoke(app, ["credentials", "shop"])
    assert lines.exit_code == 0
    assert "export AWS_SESSION_TOKEN=" in lines.stdout
    told = json.loads(CliRunner().invoke(app, ["credentials", "shop", "--json"]).stdout)
    assert told["Version"] == 1
    with vending.client("reader") as client:
        assert told["SecretAccessKey"] not in repr(table_credentials(client, "shop"))
