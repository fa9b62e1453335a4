"""Opens a stream's table under a held cut; every maintenance job begins with this."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from broker.errors import InvalidRequestError, StreamRecreatedError
from broker.model.cut import Cut
from broker.model.stream import Stream
from headwater.reads.lease_keeper import KEEPER, LEASE_TTL_MS_DEFAULT
from headwater.reads.table_access import with_data_keys
from tiering.read.lake import Lake
from tiering.store.location import StoreConfig
from tiering.store.object_store import ObjectStore
from tiering.store.opening import open_store
from tiering.table.delta_table import DeltaStreamTable
from tiering.table.table import TableSnapshot

if TYPE_CHECKING:
    from headwater.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStream:
    """A stream and its table under a cut whose lease is renewed."""

    stream: Stream
    cut: Cut
    lake: Lake
    table: DeltaStreamTable
    snapshot: TableSnapshot | None  # at the cut's version; None: nothing was ever shipped


@contextmanager
def held_stream(
    client: Client, name: str, *, what: str, cut: Cut | None = None
) -> Iterator[HeldStream]:
    """Take a cut of a stream (or use ``cut``), and hold its lease while the block runs.

    Raises:
        UnknownStreamError, InvalidRequestError: there is no such stream, or it is not tiered.
        StreamRecreatedError: the stream was created again under its name meanwhile.
        UnavailableError, CorruptDataError: the table cannot be read.
    """
    stream = client.stream(name)
    if not stream.config.tiering:
        raise InvalidRequestError(
            f"stream {name!r} has no table, because its tiering is off", stream=name
        )
    if cut is not None:
        client.check_cut(cut)
    held = cut if cut is not None else client.cut(name, ttl_ms=LEASE_TTL_MS_DEFAULT)
    KEEPER.hold(
        held.lease,
        client=client,
        ttl_ms=LEASE_TTL_MS_DEFAULT,
        drop_at_end=cut is None,
        what=f"job={what} stream={name}",
    )
    try:
        if held.stream_uuid != stream.uuid:
            raise StreamRecreatedError(
                f"stream {name!r} was created again: its uuid is {stream.uuid} now, but the cut "
                f"belongs to {held.stream_uuid}",
                expected=held.stream_uuid,
                found=stream.uuid,
            )
        lake = lake_of(held, client)
        table = lake.table_at(held.table_uri)
        version = held.table_version
        yield HeldStream(
            stream=stream,
            cut=held,
            lake=lake,
            table=table,
            snapshot=None if version is None else table.snapshot(version),
        )
    finally:
        KEEPER.release(held.lease.lease_id)


def lake_of(cut: Cut, client: Client) -> Lake:
    """Return the lake of a cut's table, with the keys of the table: two folders above the table.

    The keys are asked for after the cut, so they are those of all its files.
    """
    root = cut.table_uri.rpartition("/")[0].rpartition("/")[0]
    location = with_data_keys(client, StoreConfig.from_env(root), cut.stream, cut.stream_uuid)
    return Lake.open(location, cluster=cut.cluster)


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """The address of a store, for a task: its location and settings, without secrets.

    A task gets credentials from the environment or the profile of its own process. The data keys of
    an encrypted table go with the address: they are wrapped.
    """

    config: StoreConfig

    @classmethod
    def of(cls, store: ObjectStore) -> StoreAddress:
        """Return the address of an open store."""
        return cls(replace(store.config, credentials=None))

    def open(self) -> ObjectStore:
        """Open the store in this process."""
        here = StoreConfig.from_env(self.config.uri)
        return open_store(replace(self.config, credentials=here.credentials, profile=here.profile))
