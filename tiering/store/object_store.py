"""The port of a store of immutable objects; opening.py opens a store.

Keys are relative to the store's root, with ``/``. An object, once created, never changes: there is
no overwrite, and the port has no delete. Only the process that created objects may delete them
again, through :class:`ErasableStore`, while no table refers to them. The contract suite is
tests/contract/test_object_store.py; the adapters are s3.py (boto3) and local_store.py. Types and
errors of client libraries stay inside the adapters.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from broker.codec.checksum import crc32c
from broker.errors import UnfencedStoreError
from tiering.store.location import StoreConfig

PROBE_KEY: Final = "_headwater/conditional_put_probe"


class ObjectInfo(NamedTuple):
    """An object in the store; facts that the store does not give are None.

    A tuple, because a listing makes one for each of many files, and listings are compared.
    """

    key: str
    size_bytes: int
    crc32c: int | None = None
    etag: str | None = None  # the store's name for exactly these bytes
    stamp: tuple[int, ...] | None = None  # local files only: changes when the file is written again


class ObjectStore(Protocol):
    """Immutable objects below one root. Blocking; any thread.

    Every method may raise RemoteTierUnavailableError; then the outcome is unknown.
    """

    @property
    def config(self) -> StoreConfig:
        """Location of the root, and the settings to reach it."""

    def put_if_absent(self, key: str, body: Any, *, crc32c: int) -> ObjectInfo | None:
        """Create an object durably, unless the key is taken.

        ``body`` is bytes-like. ``crc32c`` is its CRC-32C, which the store compares with the bytes
        that it received. Returns what the store says of the object if it now has exactly these
        bytes (created by this call, or by an earlier attempt whose answer was lost), None if it has
        other bytes. The size is always there; the store's answer may lack the rest.
        """

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return all bytes of an object, or exactly those of ``[start, end)``.

        Raises:
            ObjectMissingError: no such object.
            ObjectCorruptError: the object ends before ``end``.
        """

    def head(self, key: str) -> ObjectInfo:
        """Return the size and, if the store keeps one, the CRC-32C; raises ObjectMissingError."""

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield objects in key order; keys begin with ``prefix`` and are above ``start_after``."""

    def make_durable(self, keys: Sequence[str]) -> None:
        """Sync objects that another library wrote below this root; on S3 there is nothing to do."""

    def under(self, path: str) -> ObjectStore:
        """Return the same store with its root moved down by ``path``."""


class ErasableStore(ObjectStore, Protocol):
    """A store that can delete objects; all adapters that write can. Shipping never does."""

    def erase(self, keys: Sequence[str]) -> None:
        """Delete objects of the caller that no table refers to; missing objects are no error."""

    def erase_remains(self, belongs: Callable[[str], bool], /) -> Sequence[str]:
        """Delete what no listing of a local directory shows, and return what of that stays.

        Temporary files, checksums that other software keeps beside files, and empty folders go;
        files only whose keys ``belongs`` accepts. Nobody writes below the root any more.
        """

    def under(self, path: str) -> ErasableStore:
        """Return the same store with its root moved down by ``path``."""


def require_conditional_put(store: ObjectStore) -> None:
    """Check that the store refuses to create an object twice; refuse the store if it does not.

    If two brokers both believe that they lead a partition, only this property stops the wrong one.
    So a store that overwrites silently is not used, unless the operator declares that there is
    only one writer. The probe leaves one small object in the store.

    Raises:
        UnfencedStoreError: the second create was accepted.
        RemoteTierUnavailableError: the store did not answer.
    """
    if store.config.single_writer:
        return
    first = f"headwater probe {secrets.token_hex(16)}\n".encode()
    second = f"headwater probe {secrets.token_hex(16)}\n".encode()
    store.put_if_absent(PROBE_KEY, first, crc32c=crc32c(first))
    accepted = store.put_if_absent(PROBE_KEY, second, crc32c=crc32c(second))
    if accepted is not None or store.get(PROBE_KEY) == second:
        raise UnfencedStoreError(
            f"{store.config.uri} ignores conditional PUT (If-None-Match: *), so two writers could "
            "lose each other's commits. Use a store that has it (AWS S3, MinIO, R2, Ceph, a local "
            "directory), or set single_writer if exactly one broker will ever write to this lake.",
            uri=store.config.uri,
        )
