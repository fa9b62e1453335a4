"""The lake: the root under which every stream has its table, in one object store.

Opening a lake makes no request. A writer calls :meth:`Lake.require_fence`, which probes the store,
before it writes. Readers (Spark jobs, the command, verifiers) need only this module, certify.py,
reader.py and verify.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from broker.errors import InvalidConfigError
from broker.model.stream import Stream
from tiering.store.location import StoreConfig, canonical_uri
from tiering.store.object_store import ObjectStore, require_conditional_put
from tiering.store.opening import open_for_reading, open_store
from tiering.table.delta_table import DeltaStreamTable
from tiering.table.table import CLUSTER_NAME, table_path

_KEPT_MAX: Final = 64
_KEPT: Final[dict[StoreConfig, DeltaStreamTable]] = {}  # the one used last is at the end
_KEPT_LOCK: Final = threading.Lock()


class Lake:
    """One lake and one cluster's view of it. Any thread."""

    def __init__(self, store: ObjectStore, *, cluster: str = "headwater") -> None:
        """Use an opened store whose root is the lake; :meth:`open` takes a URI."""
        if CLUSTER_NAME.match(cluster) is None:
            raise InvalidConfigError(f"cluster {cluster!r} must be 1 to 64 of A-Z a-z 0-9 _ -")
        self._store = store
        self._cluster = cluster

    @classmethod
    def open(cls, location: StoreConfig | str | Path, *, cluster: str = "headwater") -> Lake:
        """Open a lake by its URI (settings from the environment) or by a whole configuration.

        Makes no request. Raises InvalidConfigError.
        """
        if not isinstance(location, StoreConfig):
            location = StoreConfig.from_env(str(location))
        return cls(open_store(location), cluster=cluster)

    @property
    def store(self) -> ObjectStore:
        """The objects below the lake's root."""
        return self._store

    @property
    def config(self) -> StoreConfig:
        """Location of the lake, and the settings to reach it."""
        return self._store.config

    @property
    def uri(self) -> str:
        """Canonical URI of the lake's root."""
        return self._store.config.uri

    @property
    def cluster(self) -> str:
        """Name of the cluster whose streams are written here."""
        return self._cluster

    def with_deadline(self, seconds: float) -> Lake:
        """Return the lake with another deadline for uploads and table operations."""
        if self.config.upload_deadline_s == seconds:
            return self
        config = replace(self.config, upload_deadline_s=seconds)
        return Lake(open_store(config), cluster=self._cluster)

    def require_fence(self) -> None:
        """Refuse a store without conditional PUT; raises UnfencedStoreError."""
        require_conditional_put(self._store)

    def table_uri(self, stream: Stream) -> str:
        """Return the URI of a stream's table, whether it exists or not."""
        return f"{self.uri}/{table_path(stream.namespace, stream.table_name)}"

    def table(
        self, stream: Stream, *, recorded: Callable[[], Mapping[int, int]] = dict
    ) -> DeltaStreamTable:
        """Return the table of a stream, for reading and writing; makes no request.

        ``recorded`` returns the cold ends that the metadata has; see DeltaStreamTable. The table's
        operations raise TableMismatchError when the folder holds another stream's table.
        """
        store = self._store.under(table_path(stream.namespace, stream.table_name))
        return DeltaStreamTable(
            store,
            stream=stream,
            cluster=self._cluster,
            storage_options=storage_options_of(store),
            recorded=recorded,
        )

    def table_at(self, uri: str) -> DeltaStreamTable:
        """Return the table at a URI (for example a cut's), for reading; makes no request."""
        root, wanted = self.uri, canonical_uri(uri)
        if wanted == root:
            store = self._store  # creating another S3 client would take 0.1 s
        elif wanted.startswith(f"{root}/"):
            store = self._store.under(wanted[len(root) + 1 :])
        else:
            store = open_store(self.config.at(wanted))
        return table_in(store)


def kept_table(location: StoreConfig | str) -> DeltaStreamTable:
    """Return the table at a location, for reading one version after another; makes no request.

    The process keeps one object for each table. If the log is unchanged, so is the version that was
    read last; the copy of a remote log is brought forward by each use (log_copy.py). The settings
    of a URI come from the environment. Raises InvalidConfigError.
    """
    config = StoreConfig.from_env(location) if isinstance(location, str) else location
    with _KEPT_LOCK:
        table = _KEPT.pop(config, None) or table_in(open_for_reading(config))
        _KEPT[config] = table  # now the newest
        if len(_KEPT) > _KEPT_MAX:
            del _KEPT[next(iter(_KEPT))]
        return table


def table_in(store: ObjectStore) -> DeltaStreamTable:
    """Return the table that a store is rooted at, for reading; makes no request."""
    return DeltaStreamTable(store, storage_options=storage_options_of(store))


class _Options:
    """Makes delta-rs's options, with the credentials that boto3 finds at the time of the call."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config

    def __call__(self) -> dict[str, str]:
        if self._config.kind == "local":
            return {}
        from tiering.store.s3 import resolve_credentials  # noqa: PLC0415 - a local lake needs no boto3

        credentials, region = resolve_credentials(self._config)
        return self._config.storage_options(credentials, region=region)


def storage_options_of(store: ObjectStore) -> Callable[[], dict[str, str]]:
    """Return a function that makes delta-rs's options of a store; call it for each use."""
    return _Options(store.config)
