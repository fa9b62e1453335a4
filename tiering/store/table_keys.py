"""Keys of encrypted tables: Parquet's own encryption, with the data keys of the stream.

A file of an encrypted table has the columns of :data:`ENCRYPTED` as ciphertext (Parquet modular
encryption, AES-GCM, random keys for each file and column). Offsets, times and leader epochs stay
plain, and so does the footer: any reader can count, skip and list without a key. Each file names in
its footer the stream's data key, wrapped, under which its own keys are wrapped (RFC 3394). So a
file, and a lake without its cluster, can be read by everybody who has the key provider.

A rotation wraps the data keys anew, and the files keep the name of the old wrapping. Who can ask a
broker learns the new one (:meth:`TableKeys.learn`): then the provider's old key is not needed.

Which provider this process has is part of a store's configuration, like credentials of S3; so are
the data keys of the store's stream.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import pyarrow.parquet.encryption as parquet

from broker.codec.schema import FILE_SCHEMA
from broker.errors import (
    EncryptionKeyError,
    InvalidStreamError,
    KeyProviderUnavailableError,
    ObjectCorruptError,
)
from broker.model.data_key import DATA_KEY_BYTES, DataKey
from broker.model.stream import Stream
from broker.ports.encryption import KeyProvider
from tiering.store.location import StoreConfig

# Leaves of FILE_SCHEMA, as Parquet names them.
ENCRYPTED: Final = (
    "key",
    "value",
    "headers.list.element.key",
    "headers.list.element.value",
    "subject",
    "reply_subject",
    "correlation_id",
)
_PLAIN: Final = frozenset({"offset", "timestamp", "leader_epoch"})
assert {one.partition(".")[0] for one in ENCRYPTED} == set(FILE_SCHEMA.names) - _PLAIN

FOOTER_KEY: Final = "headwater.encryption"  # of the footer's key-value pairs; its value: the cipher
CIPHER: Final = "parquet-aes-gcm-v1"
_NAME_BYTES_MAX: Final = 16 * 1024
_KEYS_KEPT: Final = 1024


def is_encrypted(stream: Stream) -> bool:
    """Tell whether the table of a stream has ciphertext."""
    return stream.config.table_encryption == "ciphertext"


def needs_key(names: Iterable[str]) -> bool:
    """Tell whether some of these columns are ciphertext in an encrypted table."""
    return not _PLAIN.issuperset(names)


class TableKeys:
    """Encrypts and decrypts files of tables with one key provider. Any thread; calls may block."""

    def __init__(self, provider: KeyProvider) -> None:
        """Nothing is asked of ``provider`` before a file needs a key."""
        self._provider = provider
        self._lock = threading.Lock()  # of the three below
        self._known: dict[str, tuple[DataKey, ...]] = {}  # as the metadata has them now
        self._keys: OrderedDict[tuple[str, DataKey], bytes] = OrderedDict()  # for keys of files
        self._met: dict[str, int] = {}  # the greatest version in files that were read
        self._factory = parquet.CryptoFactory(self._kms)

    def learn(self, stream_uuid: str, keys: Sequence[DataKey]) -> None:
        """Remember all data keys of a stream, as the metadata had them at some moment.

        A rotation adds a version, so of two moments the one with more versions is the later one.
        What the bucket says is not learnt: others may write there.
        """
        with self._lock:
            if len(keys) >= len(self._known.get(stream_uuid, ())):
                self._known[stream_uuid] = tuple(keys)

    def met(self, stream_uuid: str) -> int:
        """Return the greatest version of a stream's data key in files that were read; 0: none."""
        with self._lock:
            return self._met.get(stream_uuid, 0)

    def for_writing(self, stream_uuid: str, key: DataKey) -> Any:
        """Return Parquet's properties of one new file, which has this data key.

        Raises:
            EncryptionKeyError, KeyProviderUnavailableError: the key cannot be used.
        """
        self._key(stream_uuid, key)  # a clear error here, and none from within Parquet
        name = _name_of(stream_uuid, key)
        settings = parquet.EncryptionConfiguration(
            footer_key=name,
            column_keys={name: list(ENCRYPTED)},
            plaintext_footer=True,
            double_wrapping=False,
            internal_key_material=True,
            encryption_algorithm="AES_GCM_V1",
            data_key_length_bits=256,
        )
        return self._factory.file_encryption_properties(parquet.KmsConnectionConfig(), settings)

    def for_reading(self) -> Any:
        """Return Parquet's properties of one file to read; it may be plain.

        Reading its columns raises EncryptionKeyError or KeyProviderUnavailableError if a key cannot
        be used.
        """
        return self._factory.file_decryption_properties(
            parquet.KmsConnectionConfig(), parquet.DecryptionConfiguration()
        )

    def key_named(self, name: str) -> bytes:
        """Return the key that wraps the keys of a file; errors as :meth:`for_reading`."""
        uuid, named = _parsed(name)
        return self._key(uuid, named)

    def unwrapped(self, name: str, wrapped: bytes) -> bytes | None:
        """Return a key of a file, and note which data key the file has; None: another wrapped it.

        Errors as for :meth:`for_reading`.
        """
        from broker.keys.derive import unwrap_file_key  # noqa: PLC0415 - few readers need it

        uuid, named = _parsed(name)
        found = unwrap_file_key(self._key(uuid, named), wrapped)
        if found is not None:
            with self._lock:
                self._met[uuid] = max(named.version, self._met.get(uuid, 0))
        return found

    def _key(self, uuid: str, named: DataKey) -> bytes:
        """Return what is derived from a data key, by its wrapping in the metadata or in the file.

        The keyring of this process may be newer than the file, or older than the metadata.
        """
        named = replace(named, created_us=0)  # a file does not name it
        with self._lock:
            known = self._known.get(uuid, ())
            now = known[named.version - 1] if named.version <= len(known) else named
            now = replace(now, created_us=0)
            found = self._keys.get((uuid, now)) or self._keys.get((uuid, named))
        if found is not None:
            return found
        try:
            return self._unwrap(uuid, now)
        except KeyProviderUnavailableError:
            raise
        except EncryptionKeyError:
            if named != now:
                with suppress(EncryptionKeyError):
                    return self._unwrap(uuid, named)
            raise

    def _unwrap(self, uuid: str, wrapped: DataKey) -> bytes:
        from broker.keys.derive import derived  # noqa: PLC0415 - few readers meet an encrypted table

        if wrapped.provider != self._provider.kind:
            raise EncryptionKeyError(
                f"version {wrapped.version} of the data key of stream {uuid} is wrapped by the "
                f"provider {wrapped.provider!r}, and this process has {self._provider.kind!r}",
                provider=wrapped.provider,
                wrapping_key=wrapped.wrapping_key,
            )
        context = {"headwater:stream": uuid, "headwater:version": str(wrapped.version)}
        plain = self._provider.unwrap(wrapped.wrapping_key, wrapped.wrapped_bytes, context)
        if len(plain) != DATA_KEY_BYTES:
            raise EncryptionKeyError(
                f"the key provider {wrapped.provider!r} returned a data key of {len(plain)} "
                f"bytes for stream {uuid}, but a data key has {DATA_KEY_BYTES}: it is not a "
                "key that Headwater wrapped",
                provider=wrapped.provider,
                wrapping_key=wrapped.wrapping_key,
            )
        found = derived(plain, "table files")
        with self._lock:
            self._keys[uuid, wrapped] = found
            if len(self._keys) > _KEYS_KEPT:
                self._keys.popitem(last=False)
        return found

    def _kms(self, _connection: object) -> _Wrapping:
        return _Wrapping(self)


class _Wrapping(parquet.KmsClient):  # type: ignore[misc]  # pyarrow has no types
    """Wraps the keys of files for Parquet."""

    def __init__(self, keys: TableKeys) -> None:
        super().__init__()
        self._keys = keys

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        from broker.keys.derive import wrap_file_key  # noqa: PLC0415 - few readers need it

        wrapped = wrap_file_key(self._keys.key_named(master_key_identifier), key_bytes)
        return base64.b64encode(wrapped)

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
        try:
            wrapped = base64.b64decode(wrapped_key, validate=True)
        except (binascii.Error, ValueError):
            wrapped = b""
        found = self._keys.unwrapped(master_key_identifier, wrapped)
        if found is None:
            raise ObjectCorruptError(
                f"the encryption key in a file's footer does not unwrap with the data key "
                f"{master_key_identifier.partition(' ')[0]}: the footer was changed, or another "
                "data key wrapped it"
            )
        return found


@lru_cache(maxsize=16)
def keys_of(provider: str, keyring_file: str, kms_key_id: str) -> TableKeys | None:
    """Return the keys of this process with one provider; None without a provider."""
    if not provider:
        return None
    import os  # noqa: PLC0415 - only the provider `environment` reads it

    from broker.keys.opening import open_provider  # noqa: PLC0415 - as above

    return TableKeys(
        open_provider(
            provider, keyring_file=keyring_file, kms_key_id=kms_key_id, environ=os.environ
        )
    )


class FileEncryption:
    """Encrypts new files of a stream's table, with the newest data key that the stream has."""

    def __init__(self, stream: Stream, config: StoreConfig) -> None:
        """Nothing is asked of the key provider before :meth:`__call__`.

        Raises:
            EncryptionKeyError: this process has no key provider.
        """
        keys = keys_at(config)
        if keys is None:
            raise no_keys(f"the table of stream {stream.name!r}")
        self._keys = keys
        self._stream = stream
        self._key = stream.data_keys[-1]

    def __call__(self) -> Any:
        """Return Parquet's properties of one new file; raises as :meth:`TableKeys.for_writing`."""
        return self._keys.for_writing(self._stream.uuid, self._key)

    def require_newest(self) -> None:
        """Check that no file of the stream that this process has read has a newer data key.

        Raises:
            EncryptionKeyError: there was one.
        """
        met = self._keys.met(self._stream.uuid)
        if met > self._key.version:
            raise EncryptionKeyError(
                f"files of stream {self._stream.name!r} have version {met} of its data key, and "
                f"this process knows only version {self._key.version}, so a new file would have a "
                "key that rotation has replaced: begin again when all brokers have the rotation",
                stream=self._stream.name,
                version=self._key.version,
            )


def encryption_of(stream: Stream, config: StoreConfig) -> FileEncryption | None:
    """Return the encryption of new files of a stream's table; None if the table has plaintext.

    ``stream`` is as the metadata has it now. What that says of its data keys is learnt.

    Raises:
        EncryptionKeyError: the table is encrypted, and this process has no key provider.
    """
    if not is_encrypted(stream):
        return None
    keys = keys_at(config)
    if keys is not None:
        keys.learn(stream.uuid, stream.data_keys)
    return FileEncryption(stream, config)


def no_keys(path: str) -> EncryptionKeyError:
    """Return the error of a process that has no key provider, about an encrypted file."""
    return EncryptionKeyError(
        f"{path} is encrypted, and this process has no key provider: set "
        "HEADWATER_ENCRYPTION_PROVIDER and its setting as for the brokers (docs/encryption.md)",
        key=path,
    )


def _name_of(uuid: str, key: DataKey) -> str:
    """Return the name under which a file has its data key: stream and version, then the rest.

    Parquet's settings are one text, with ``:`` behind a name and ``;`` behind its columns. A name
    has these two, as in an ARN, in JSON's escaped form.
    """
    wrapping = json.dumps([key.provider, key.wrapping_key, key.wrapped], separators=(",", ":"))
    escaped = wrapping.replace(":", r"\u003a").replace(";", r"\u003b")
    return f"{uuid}/{key.version} {escaped}"


def _parsed(name: str) -> tuple[str, DataKey]:
    try:
        if len(name) > _NAME_BYTES_MAX:
            raise ValueError("too long")
        which, _, rest = name.partition(" ")
        uuid, _, version = which.partition("/")
        provider, wrapping_key, wrapped = json.loads(rest)
        key = DataKey(
            version=int(version),
            provider=str(provider),
            wrapping_key=str(wrapping_key),
            wrapped=str(wrapped),
            created_us=0,
        )
    except (ValueError, TypeError, RecursionError, InvalidStreamError) as cause:
        raise ObjectCorruptError(
            f"the name of a data key in a file's footer is not readable: {name[:80]!r}"
        ) from cause
    return uuid, key


def keys_at(config: StoreConfig) -> TableKeys | None:
    """Return the keys of this process for a store's tables; None if it has no provider.

    They have learnt the data keys that the store's configuration has.
    """
    keys = keys_of(config.key_provider, config.keyring_file, config.kms_key_id)
    if keys is not None and config.data_keys is not None:
        keys.learn(config.data_keys.stream_uuid, config.data_keys.keys)
    return keys
