"""Reads objects of S3 and compatible stores by obstore. The only file that imports obstore.

For what a process only reads, as a command does. boto3 takes 0.3 s until its first request;
obstore, which wraps the client that is in delta-rs, is ready in milliseconds. Processes that write
use s3.py, with the checksums of its uploads, and so does the little that a reader writes.
Credentials and region have to be given: boto3 looks for others, see opening.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import obstore.store
from obstore.exceptions import BaseError, UnauthenticatedError

from broker.errors import (
    HeadwaterError,
    InvalidConfigError,
    ObjectCorruptError,
    ObjectMissingError,
    RemoteTierUnavailableError,
)
from tiering.store.location import Credentials, StoreConfig
from tiering.store.object_store import ObjectInfo, ObjectStore

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import S3Config, S3Credential

_T = TypeVar("_T")

_SHORT: Final = frozenset({"InvalidRange"})
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")  # in S3's answer, which an error quotes


class S3Reads:
    """Immutable objects in one bucket below one prefix. Any thread."""

    def __init__(self, config: StoreConfig, client: obstore.store.S3Store | None = None) -> None:
        """Make no request; ``config`` names credentials and a region."""
        self._config = config
        self._client = _make_client(config) if client is None else client
        self._prefix = f"{config.prefix}/" if config.prefix else ""
        self._writer: ObjectStore | None = None  # made when something is written

    @property
    def config(self) -> StoreConfig:
        """Bucket, prefix and the settings to reach them."""
        return self._config

    def put_if_absent(self, key: str, body: Any, *, crc32c: int) -> ObjectInfo | None:
        """Create an object, unless the key is taken; see the port."""
        if self._writer is None:
            from tiering.store.s3 import S3Store  # noqa: PLC0415 - few readers write

            self._writer = S3Store(self._config)
        return self._writer.put_if_absent(key, body, crc32c=crc32c)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return all bytes, or exactly those of ``[start, end)``; see the port."""
        first = start or 0
        if end is not None and end <= first:
            return b""
        wanted: GetOptions = {}
        if end is not None:
            wanted["range"] = (first, end)
        elif first:
            wanted["range"] = {"offset": first}

        def fetch() -> bytes:
            data: bytes = self._client.get(self._prefix + key, options=wanted).bytes().to_bytes()
            return data

        try:
            data = self._ask(fetch, key)
        except RemoteTierUnavailableError as error:
            if error.facts.get("code") not in _SHORT:
                raise
            raise _short(key, first, end) from error
        if end is not None and len(data) != end - first:
            raise _short(key, first, end)
        return data

    def head(self, key: str) -> ObjectInfo:
        """Return size and ETag; obstore does not tell the checksum that the store recorded."""
        found = self._ask(lambda: self._client.head(self._prefix + key), key)
        return ObjectInfo(key, found["size"], etag=found["e_tag"])

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield objects by key; each request lists up to a thousand.

        An answer that breaks off is an error: obstore does not ask for it again.
        """
        wanted = self._prefix + prefix
        # obstore lists a folder. In the folder, all keys that are wanted are above this one.
        folder, slash, name = wanted.rpartition("/")
        before = max(wanted[:-1] if name else "", self._prefix + start_after if start_after else "")
        pages = iter(self._client.list(folder + slash, offset=before or None))
        while (page := self._ask(lambda: next(pages, None), prefix)) is not None:
            for one in page:
                place = one["path"]
                if place.startswith(wanted):
                    yield ObjectInfo(place[len(self._prefix) :], one["size"], etag=one["e_tag"])
                elif place > wanted:
                    return

    def make_durable(self, keys: Sequence[str]) -> None:
        """Do nothing: S3 answers only after an object is durable."""

    def under(self, path: str) -> S3Reads:
        """Return the same bucket, one prefix down, over the same connections."""
        return S3Reads(self._config.child(path), self._client)

    def _ask(self, request: Callable[[], _T], key: str) -> _T:
        """Send a request, which obstore repeats when it fails for a reason that may pass."""
        try:
            return request()
        except (BaseError, OSError, ValueError) as cause:
            if isinstance(cause, UnauthenticatedError) and self._config.vended is not None:
                self._config.vended()  # raises why there are no keys; obstore has made text of it
            raise _translated(cause, key) from cause


def _make_client(config: StoreConfig) -> obstore.store.S3Store:
    vended, found = config.vended, config.credentials
    assert config.region is not None, "the caller looks for the region"
    told: S3Config = {
        "region": config.region,
        "virtual_hosted_style_request": not config.path_style,
    }
    if vended is None:
        assert found is not None, "the caller looks for credentials"
        told["access_key_id"] = found.access_key_id
        told["secret_access_key"] = found.secret_access_key.reveal()
        if found.session_token is not None:
            told["session_token"] = found.session_token.reveal()
    if config.endpoint is not None:
        told["aws_endpoint_url_s3"] = config.endpoint  # wins over all variables of the environment
    try:
        return obstore.store.S3Store(
            config.bucket,
            config=told,
            credential_provider=None if vended is None else lambda: _asked_anew(vended()),
            client_options={
                "allow_http": (config.endpoint or "").startswith("http://"),
                "connect_timeout": timedelta(seconds=config.connect_timeout_s),
                "read_timeout": timedelta(seconds=config.read_timeout_s),
                "timeout": timedelta(seconds=config.upload_deadline_s),
            },
            retry_config={
                "max_retries": config.attempts_max - 1,
                "retry_timeout": timedelta(seconds=config.upload_deadline_s),
            },
        )
    except (BaseError, ValueError) as cause:
        raise InvalidConfigError(f"cannot reach {config.uri}: {cause}", uri=config.uri) from cause


def _asked_anew(found: Credentials) -> S3Credential:
    """Return credentials as obstore takes them; it asks again before they end."""
    ends_us, token = found.expires_us, found.session_token
    return {
        "access_key_id": found.access_key_id,
        "secret_access_key": found.secret_access_key.reveal(),
        "token": None if token is None else token.reveal(),
        "expires_at": None if ends_us is None else datetime.fromtimestamp(ends_us / 1e6, UTC),
    }


def _translated(cause: Exception, key: str) -> HeadwaterError:
    """Translate a client error into one of ours; its text has S3's whole answer."""
    code = match[1] if (match := _CODE.search(str(cause))) else ""
    if isinstance(cause, FileNotFoundError) and code != "NoSuchBucket":
        return ObjectMissingError(f"{key} is not in the store", key=key)
    told = f"S3 answered {code}" if code else str(cause).partition("\n")[0]
    return RemoteTierUnavailableError(f"{key}: {told}", key=key, code=code)


def _short(key: str, start: int, end: int | None) -> ObjectCorruptError:
    asked = f"from {start} on" if end is None else f"[{start}, {end})"
    return ObjectCorruptError(f"{key} is shorter than its bytes {asked}", key=key)
