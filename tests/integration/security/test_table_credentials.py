"""Credentials for tables: a reader without any of its own reads its streams' tables, and no others.

tests/lib/simkit/tier/vending.py says what moto checks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

import headwater
from broker.codec.checksum import crc32c
from broker.errors import (
    AccessDeniedError,
    NotShippedError,
    RemoteTierUnavailableError,
)
from broker.model.access import Grant
from broker.model.cut import Cut
from headwater.cli.access import app
from headwater.client import Client
from headwater.client.access import AccessCalls
from headwater.client.table_credentials import table_credentials
from headwater.reads.table_access import table_location
from simkit.tier.vending import BUCKET, Vending, vending_in
from tiering.store.location import StoreConfig
from tiering.store.object_store import ObjectStore
from tiering.store.opening import open_for_reading, open_store

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def vending(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vending]:
    """One broker for all tests of this file."""
    with vending_in(tmp_path_factory.mktemp("vending")) as found:
        yield found


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


@pytest.mark.parametrize(
    ("opened", "early_us"),
    [
        (open_for_reading, 900_000_000),
        (open_store, 700_000_000),
    ],  # with so few left each asks
    ids=["obstore", "boto3"],
)
def test_a_reader_who_gets_no_more_keys_hears_why(
    vending: Vending, opened: Callable[[StoreConfig], ObjectStore], early_us: int
) -> None:
    """By each client library: a revocation in the middle of a read is no failure of the store."""
    grant = Grant(principal="stranger", kind="stream", pattern="shop", actions=("consume",))
    commit = "_delta_log/00000000000000000000.json"
    with vending.client("admin") as admin, vending.client("stranger") as client:
        access = AccessCalls(admin)
        access.grant([grant])
        vending.sessions.early_us = early_us
        try:
            with client_cut(client) as cut:
                store = opened(table_location(client, cut))
                assert store.get(commit)
        finally:
            access.revoke([grant])
        try:
            with pytest.raises(AccessDeniedError):
                store.get(commit)
        finally:
            vending.sessions.early_us = 0
