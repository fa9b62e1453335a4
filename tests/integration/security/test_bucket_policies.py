"""The policies of docs/security.md, "Who reads the bucket", on a moto that checks each request.

moto enforces the actions and resources of a user's policy. It does not look at conditions, so what
a reader may list is not shown here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.codec.checksum import crc32c
from broker.errors import RemoteTierUnavailableError
from headwater.local.embedded import moto_environment
from projectfiles import ROOT
from simkit.servers.moto_iam import check_from_now, checking_moto, make_user
from tiering.store.location import StoreConfig
from tiering.store.object_store import ErasableStore
from tiering.store.opening import open_store

pytestmark = pytest.mark.integration

OWN, OTHER = "default/shop-in/part.parquet", "default/payroll/part.parquet"
StoreOf = Callable[[str], ErasableStore]


def policies() -> dict[str, str]:
    """Return the page's policies, by who has them."""
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    section = page.partition("### Who reads the bucket")[2].partition("\n## ")[0]
    reader, broker = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    return {"reader": reader, "broker": broker}


@pytest.fixture
def store_of(tmp_path: Path) -> Iterator[StoreOf]:
    """Give the lake's store as a user with one of the policies has it."""
    with checking_moto(tmp_path, bucket="my-bucket") as moto:
        keys = {name: make_user(moto, name, policy) for name, policy in policies().items()}
        check_from_now(moto)

        def store(name: str) -> ErasableStore:
            environment = {**moto_environment(moto.address), **keys[name]}
            return open_store(StoreConfig.from_env("s3://my-bucket/headwater", environment))

        yield store


def test_brokers_write_and_a_reader_reads_its_tables_only(store_of: StoreOf) -> None:
    """Nobody but the brokers changes an object, and nobody reads the table of others."""
    broker, reader = store_of("broker"), store_of("reader")
    for key in (OWN, OTHER):
        assert broker.put_if_absent(key, b"rows", crc32c=crc32c(b"rows"))
    assert [one.key for one in broker.list("default/")] == [OTHER, OWN]
    assert reader.get(OWN) == b"rows"
    for refused in (
        lambda: reader.get(OTHER),
        lambda: reader.put_if_absent(f"{OWN}2", b"x", crc32c=crc32c(b"x")),
        lambda: reader.erase([OWN]),
    ):
        with pytest.raises(RemoteTierUnavailableError, match="Denied"):
            refused()
    broker.erase([OWN])
    assert [one.key for one in broker.list("default/")] == [OTHER]
