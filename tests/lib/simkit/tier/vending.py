"""A broker that gives out keys for tables on moto, to readers who have none of their own.

moto keeps the policy of a session and does not look at it, so here the role itself gets the policy
of each session; moto then checks the actions and resources of every request. The role may do what
the newest session may, or, for several readers at a time, what any session may (``together``).
"""

from __future__ import annotations

import json
import secrets
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import boto3
import pytest

from broker.adapters.access.aws_sts import AwsSts
from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.core.access.static_tokens import TOKEN_BYTES, make_token, split_token
from broker.model.access import Grant
from broker.model.offsets import Offset
from broker.model.secret import Secret
from broker.model.stream import Stream
from broker.model.table_credentials import StorePlace, TemporaryKeys
from broker.model.tiering import TableState
from broker.runtime.api.access import Access
from broker.runtime.api.table_credentials import VendedCredentials
from headwater.client import Client
from headwater.local.embedded import EmbeddedServer, moto_environment
from simkit.brokers.memory_broker import numbered
from simkit.servers.moto_iam import check_from_now, checking_moto, iam_of, make_user
from simkit.tier.lake_broker import LakeBroker
from tiering.keys.snapshot import key_snapshot_uri
from tiering.store.location import StoreConfig

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
    """STS of moto, with a role that may do what its sessions may."""

    def __init__(self, address: str, keys: Mapping[str, str], *, together: bool) -> None:
        given: dict[str, Any] = {name.lower(): value for name, value in keys.items()}
        self._iam = boto3.client("iam", endpoint_url=address, region_name="us-east-1", **given)
        self._sts = AwsSts(ROLE, ttl_s=900, url=address, region="us-east-1")
        self._address = address
        self._together = together
        self.opened: list[str] = []
        self.policy = ""  # of the newest session
        self.early_us = 0  # how much sooner the next keys say that they end

    def open(self, name: str, policy: str) -> TemporaryKeys:
        """See ``RoleSessions.open``."""
        added = f"p{len(self.opened)}" if self._together else "p"
        self._iam.put_role_policy(RoleName="readers", PolicyName=added, PolicyDocument=policy)
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


@contextmanager
def vending_in(folder: Path, *, together: bool = False) -> Iterator[Vending]:
    """Give the streams shop and payroll with tables, and young without; ``reader`` reads shop.

    This process has no credentials until the end of the block.
    """
    with checking_moto(folder, bucket=BUCKET) as moto, pytest.MonkeyPatch.context() as patch:
        keys = make_user(moto, "broker", json.dumps(EVERYTHING))
        iam_of(moto).create_role(RoleName="readers", AssumeRolePolicyDocument=json.dumps(TRUST))
        check_from_now(moto)
        for name, value in keys.items():
            patch.setenv(name, value)  # the broker's, which has STS from them
        with _serving(moto, keys, together=together) as served:
            for name in OWN_CREDENTIALS:
                patch.delenv(name, raising=False)  # from here on nobody finds any
            patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            patch.setenv("HOME", str(folder))
            yield served


@contextmanager
def _serving(moto: EmbeddedServer, keys: Mapping[str, str], *, together: bool) -> Iterator[Vending]:
    location = StoreConfig.from_env(
        f"s3://{BUCKET}/headwater", {**moto_environment(moto.address), **keys}
    )
    broker, sessions = LakeBroker(location), Sessions(moto.address, keys, together=together)
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
                    producer.send(numbered(0, 30)).result(60)
        for name in ("shop", "payroll"):
            broker.ship(name, 0, Offset(20))
        sessions.open("first", json.dumps(EVERYTHING))  # boto3 looks for credentials only once
        sessions.opened.clear()  # so the next policy takes the place of this one
        yield found
    finally:
        assert service.close(timeout_ms=60_000)
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
