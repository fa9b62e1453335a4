"""The object store on S3 and compatible stores. The only file that imports boto3.

A create carries ``If-None-Match: *`` and a CRC-32C that is computed here. botocore repeats a failed
request a bounded number of times with jittered backoff. An upload as a whole has a deadline, after
which it counts as failed. It may still take effect later; that is harmless, because data keys are
never used twice.
"""

from __future__ import annotations

import base64
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

import boto3.session
import pyarrow as pa
from botocore.config import Config
from botocore.credentials import (
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
)
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.session import Session as BotocoreSession
from urllib3.exceptions import HTTPError

from broker.codec.checksum import crc32c as crc32c_of
from broker.errors import (
    HeadwaterError,
    InvalidConfigError,
    ObjectCorruptError,
    ObjectMissingError,
    RemoteTierUnavailableError,
    UnfencedStoreError,
)
from broker.model.secret import Secret
from tiering.store.deadline import call_with_deadline
from tiering.store.location import Credentials, CredentialSource, StoreConfig
from tiering.store.object_store import ObjectInfo

_T = TypeVar("_T")

_MISSING: Final = frozenset({"NoSuchKey", "404", "NotFound"})
_TAKEN: Final = frozenset({"PreconditionFailed", "412"})
_RACING: Final = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})
_SHORT: Final = frozenset({"InvalidRange", "416"})
_UNKNOWN_HEADER: Final = frozenset({"NotImplemented", "501"})
_CONFLICT_ATTEMPTS_MAX: Final = 5

NO_CREDENTIALS: Final = (
    "no S3 credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
)


class _CreatedAtOnceError(Exception):
    """S3 reports another create of the key at the same moment."""


class S3Store:
    """Immutable objects in one bucket below one prefix. Any thread."""

    def __init__(self, config: StoreConfig, client: Any = None) -> None:
        self._config = config
        self._client = client if client is not None else _make_client(config)
        self._bucket = config.bucket
        self._prefix = f"{config.prefix}/" if config.prefix else ""

    @property
    def config(self) -> StoreConfig:
        """Bucket, prefix and the settings to reach them."""
        return self._config

    def put_if_absent(self, key: str, body: Any, *, crc32c: int) -> ObjectInfo | None:
        """Create an object, unless the key is taken; see the port."""
        if crc32c_of(body) != crc32c:  # AWS compares too, but some compatible stores do not
            raise ObjectCorruptError(f"{key} was damaged on its way to the store", key=key)

        def upload() -> ObjectInfo | None:
            for _ in range(_CONFLICT_ATTEMPTS_MAX):
                with suppress(_CreatedAtOnceError):
                    return self._try_create(key, body, crc32c)
            raise RemoteTierUnavailableError(
                f"{key}: S3 reported concurrent creates {_CONFLICT_ATTEMPTS_MAX} times in a row",
                key=key,
            )

        return call_with_deadline(
            upload, seconds=self._config.upload_deadline_s, what=f"upload of {key}"
        )

    def _try_create(self, key: str, body: Any, crc32c: int) -> ObjectInfo | None:
        """Create once; raises _CreatedAtOnceError if another create may be under way."""
        size = len(memoryview(body))
        try:
            answer = self._client.put_object(
                Bucket=self._bucket,
                Key=self._prefix + key,
                # A file-like body is sent in pieces, without a second copy of a large object.
                Body=pa.BufferReader(body),
                IfNoneMatch="*",
                ChecksumCRC32C=base64.b64encode(struct.pack(">I", crc32c)).decode(),
            )
        except ClientError as cause:
            code = _code(cause)
            if code in _TAKEN:
                # An earlier attempt may have succeeded and only its answer was lost.
                # An Arrow buffer's view has signed bytes, which equal no others above 127.
                same = self.get(key) == memoryview(body).cast("B")
                return ObjectInfo(key, size) if same else None
            if code in _RACING:
                raise _CreatedAtOnceError from cause
            if code in _UNKNOWN_HEADER:
                raise UnfencedStoreError(
                    f"{self._config.uri} does not implement conditional PUT (If-None-Match: *); "
                    "use a store that has it (AWS S3, MinIO, R2, Ceph, a local directory)",
                    uri=self._config.uri,
                ) from cause
            raise _translated(cause, key) from cause
        except (BotoCoreError, HTTPError) as cause:
            raise _translated(cause, key) from cause
        return _told(key, size, answer)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return all bytes, or exactly those of ``[start, end)``; see the port."""
        ranged = start is not None or end is not None
        if ranged and end is not None and end <= (start or 0):
            return b""
        arguments: dict[str, Any] = {"Bucket": self._bucket, "Key": self._prefix + key}
        if ranged:
            last = "" if end is None else str(end - 1)
            arguments["Range"] = f"bytes={start or 0}-{last}"

        def fetch() -> bytes:
            answer = self._client.get_object(**arguments)
            data: bytes = answer["Body"].read()
            if len(data) != answer["ContentLength"]:
                raise RemoteTierUnavailableError(f"{key}: S3's answer was cut short", key=key)
            return data

        data = self._with_retries(fetch, key)
        if end is not None and len(data) != end - (start or 0):
            raise ObjectCorruptError(
                f"{key} gave only {len(data)} bytes of [{start or 0}, {end})",
                key=key,
                size=len(data),
            )
        return data

    def head(self, key: str) -> ObjectInfo:
        """Return the size, and the CRC-32C that the store recorded."""

        def ask() -> Any:
            return self._client.head_object(
                Bucket=self._bucket, Key=self._prefix + key, ChecksumMode="ENABLED"
            )

        answer = self._with_retries(ask, key)
        return _told(key, answer["ContentLength"], answer)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield objects by key; each request lists up to a thousand."""
        arguments: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
        if start_after:
            arguments["StartAfter"] = self._prefix + start_after
        while True:
            page = self._with_retries(lambda: self._client.list_objects_v2(**arguments), prefix)
            for item in page.get("Contents", ()):
                key = item["Key"][len(self._prefix) :]
                yield ObjectInfo(key, item["Size"], etag=item.get("ETag"))
            token = page.get("NextContinuationToken")
            if not token:
                return
            arguments["ContinuationToken"] = token

    def make_durable(self, keys: Sequence[str]) -> None:
        """Do nothing: S3 answers only after an object is durable."""

    def erase(self, keys: Sequence[str]) -> None:
        """Delete objects; see the port."""
        for key in keys:
            place = {"Bucket": self._bucket, "Key": self._prefix + key}
            self._with_retries(partial(self._client.delete_object, **place), key)

    def erase_remains(self, _belongs: Callable[[str], bool], /) -> Sequence[str]:
        """Do nothing: a bucket has objects only."""
        return ()

    def under(self, path: str) -> S3Store:
        """Return the same bucket, one prefix down, over the same connections."""
        return S3Store(self._config.child(path), self._client)

    def _with_retries(self, request: Callable[[], _T], key: str) -> _T:
        """Send an idempotent request; botocore repeats failures, we repeat a body cut short."""
        for attempt in range(1, self._config.attempts_max + 1):
            try:
                return request()
            except (BotoCoreError, ClientError, HTTPError) as cause:
                error = _translated(cause, key)
                # A ClientError was already retried by botocore where that makes sense.
                if isinstance(cause, ClientError) or attempt == self._config.attempts_max:
                    raise error from cause
            except RemoteTierUnavailableError:
                if attempt == self._config.attempts_max:
                    raise
            threading.Event().wait(0.05 * 2**attempt)
        raise AssertionError("the loop returns or raises")


def resolve_credentials(config: StoreConfig) -> tuple[Credentials | None, str | None]:
    """Return the key pair and the region that boto3 finds now, for use by delta-rs.

    delta-rs does not read every source that boto3 reads (profiles with roles, single sign-on), so
    both clients use the credentials that boto3 found. Call this before each use, because keys from
    a role expire.
    """
    if config.credentials is not None:
        return config.credentials, config.region
    if config.vended is not None:
        return config.vended(), config.region
    try:
        session = boto3.session.Session(**config.boto3_session_kwargs())
        found = session.get_credentials()
        if found is None:
            return None, session.region_name
        frozen = found.get_frozen_credentials()
        if not frozen.access_key or not frozen.secret_key:
            return None, session.region_name
    except BotoCoreError as cause:
        raise InvalidConfigError(f"no credentials for {config.uri}: {cause}") from cause
    return (
        Credentials(
            access_key_id=frozen.access_key,
            secret_access_key=Secret(frozen.secret_key),
            session_token=Secret.of(frozen.token),
        ),
        session.region_name,
    )


def _make_client(config: StoreConfig) -> Any:
    settings = Config(
        connect_timeout=config.connect_timeout_s,
        read_timeout=config.read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": config.attempts_max},
        max_pool_connections=16,
        s3={"addressing_style": "path" if config.path_style else "auto"},
        # We compute the CRC-32C of an upload, and compare downloaded bytes, ourselves.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        session = boto3.session.Session(
            **config.boto3_session_kwargs(),
            botocore_session=None if config.vended is None else _session_of(config.vended),
        )
        return session.client("s3", endpoint_url=config.endpoint, config=settings)
    except (BotoCoreError, ValueError) as cause:
        raise InvalidConfigError(f"cannot reach {config.uri}: {cause}", uri=config.uri) from cause


def _session_of(vended: CredentialSource) -> BotocoreSession:
    """Return a session whose clients ask for other credentials before those that they have end."""
    session = BotocoreSession()
    session.register_component("credential_provider", CredentialResolver([_Vended(vended)]))
    return session


class _Vended(CredentialProvider):
    """Hands a source of credentials to botocore, which asks it again when they are about to end."""

    METHOD = "headwater"

    def __init__(self, vended: CredentialSource) -> None:
        super().__init__()
        self._vended = vended

    def load(self) -> DeferredRefreshableCredentials:
        return DeferredRefreshableCredentials(refresh_using=self._told, method=self.METHOD)

    def _told(self) -> dict[str, str]:
        found = self._vended()
        assert found.session_token is not None, "vended credentials are those of a session"
        assert found.expires_us is not None, "vended credentials end"
        return {
            "access_key": found.access_key_id,
            "secret_key": found.secret_access_key.reveal(),
            "token": found.session_token.reveal(),
            "expiry_time": datetime.fromtimestamp(found.expires_us / 1e6, UTC).isoformat(),
        }


def _told(key: str, size: int, answer: Mapping[str, Any]) -> ObjectInfo:
    """Return what an answer's headers say of an object."""
    return ObjectInfo(
        key, size, crc32c=checksum_in(answer.get("ChecksumCRC32C")), etag=answer.get("ETag")
    )


def checksum_in(text: str | None) -> int | None:
    """Return a CRC-32C as S3 writes it; None for no checksum, and for that of a whole upload."""
    if text is None or "-" in text:  # with a dash it is a multipart upload's checksum
        return None
    try:
        (checksum,) = struct.unpack(">I", base64.b64decode(text, validate=True))
    except (ValueError, struct.error):
        return None  # as of a store that keeps none: the bytes are read and compared
    return int(checksum)


def _code(cause: ClientError) -> str:
    return str(cause.response.get("Error", {}).get("Code", ""))


def _translated(cause: BotoCoreError | ClientError | HTTPError, key: str) -> HeadwaterError:
    """Translate a client error into one of ours.

    An HTTPError of urllib3 is the body of an answer that broke off; botocore passes it unchanged.
    """
    if isinstance(cause, NoCredentialsError):
        return InvalidConfigError(NO_CREDENTIALS)
    at = f"{key}: " if key else ""  # a listing may have no key
    if isinstance(cause, ClientError):
        code = _code(cause)
        if code in _MISSING:
            return ObjectMissingError(f"{key} is not in the store", key=key)
        if code == "NoSuchBucket":
            bucket = cause.response["Error"].get("BucketName", "")
            return RemoteTierUnavailableError(
                f"there is no bucket {bucket}; create it, or correct the lake's URI",
                key=key,
                code=code,
            )
        if code in _SHORT:
            return ObjectCorruptError(f"{key} is shorter than recorded", key=key)
        return RemoteTierUnavailableError(f"{at}S3 answered {code}", key=key, code=code)
    return RemoteTierUnavailableError(f"{at}{type(cause).__name__}: {cause}", key=key)
