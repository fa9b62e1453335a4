"""Reads from an S3-compatible store for a short command, without the half second that boto3 takes.

Only what is plain is asked for here: GET and LIST at an endpoint that was named, with a key pair
that was given. Every other answer than the expected one, errors among them, is left to the store of
boto3 (s3.py): it asks again, repeats what failed and says what is wrong. So this module can make a
read quicker, and cannot make it fail or succeed in another way.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree as ET

from tiering.store.location import Credentials, StoreConfig
from tiering.store.object_store import ErasableStore, ObjectInfo

_OF_NOTHING: Final = hashlib.sha256(b"").hexdigest()  # the body of a GET
_BYTES_MAX: Final = 64 * 1024 * 1024  # larger answers are fetched by boto3, in pieces
_PAGE_BYTES_MAX: Final = 8 * 1024 * 1024  # of a listing: a thousand keys of up to 1,024 bytes
_XML: Final = "{http://s3.amazonaws.com/doc/2006-03-01/}"
_CONNECTIONS_MAX: Final = 16
# Settings of botocore that change which server is asked, or whose certificate is believed.
_NOT_PLAIN: Final = {
    "http": ("HTTP_PROXY", "ALL_PROXY"),
    "https": ("HTTPS_PROXY", "ALL_PROXY", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"),
}


def is_plain(config: StoreConfig, env: Mapping[str, str] | None = None) -> bool:
    """Tell whether a store can be read here: endpoint, region, key pair, nothing in between."""
    env = os.environ if env is None else env
    parts = urlsplit(config.endpoint or "")
    return (
        config.kind == "s3"
        and config.path_style
        and None not in (config.region, config.credentials)
        and parts.path in ("", "/")
        and parts.scheme in _NOT_PLAIN
        and not any(env.get(name) or env.get(name.lower()) for name in _NOT_PLAIN[parts.scheme])
    )


class QuickReads:
    """The store of one location, below ``usual``, the store that boto3 reads. Any thread.

    ``usual`` opens it, at the first request that is not answered here.
    """

    def __init__(self, config: StoreConfig, usual: _Usual, wire: _SignedGets | None = None) -> None:
        self._config = config
        self._usual = usual
        self._wire = wire or _SignedGets(config)
        self._prefix = f"{config.prefix}/" if config.prefix else ""

    @property
    def config(self) -> StoreConfig:
        """Bucket, prefix and the settings to reach them."""
        return self._config

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return all bytes, or exactly those of ``[start, end)``; see the port."""
        if start is None and end is None:
            found = self._wire.get(f"/{self._config.bucket}/{self._prefix}{key}", {}, _BYTES_MAX)
            if found is not None:
                return found
        return self._usual.store.get(key, start, end)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield objects by key; see the port."""
        query = {"list-type": "2", "prefix": self._prefix + prefix}
        if start_after:
            query["start-after"] = self._prefix + start_after
        last = start_after
        while True:
            page = self._wire.get(f"/{self._config.bucket}", query, _PAGE_BYTES_MAX)
            read = None if page is None else _page(page, self._prefix)
            if read is None:
                yield from self._usual.store.list(prefix, start_after=last)
                return
            infos, token = read
            yield from infos
            if not token:
                return
            last = infos[-1].key if infos else last
            query["continuation-token"] = token

    def put_if_absent(self, key: str, body: Any, *, crc32c: int) -> bool:
        """Create an object; see the port."""
        return self._usual.store.put_if_absent(key, body, crc32c=crc32c)

    def head(self, key: str) -> ObjectInfo:
        """Return an object's size and checksum; see the port."""
        return self._usual.store.head(key)

    def make_durable(self, keys: Sequence[str]) -> None:
        """Do nothing: S3 answers only after an object is durable."""

    def erase(self, keys: Sequence[str]) -> None:
        """Delete objects; see the port."""
        self._usual.store.erase(keys)

    def under(self, path: str) -> QuickReads:
        """Return the same bucket, one prefix down, over the same connections."""
        return QuickReads(self._config.child(path), self._usual.under(path), self._wire)


class _Usual:
    """The store that boto3 reads, opened when it is first asked for."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._opened: ErasableStore | None = None

    @property
    def store(self) -> ErasableStore:
        """The store; boto3's client is made by the first call."""
        if self._opened is None:
            from tiering.store.s3 import S3Store  # noqa: PLC0415

            self._opened = S3Store(self._config)
        return self._opened

    def under(self, path: str) -> _Usual:
        """Return the same one prefix down."""
        return _Usual(self._config.child(path))


def open_quick_reads(config: StoreConfig) -> QuickReads:
    """Return the store of a location that :func:`is_plain`; makes no request."""
    return QuickReads(config, _Usual(config))


class _SignedGets:
    """Signed requests to one endpoint over connections that are used again. Any thread."""

    def __init__(self, config: StoreConfig) -> None:
        assert config.endpoint is not None, "see is_plain"
        assert config.credentials is not None, "see is_plain"
        parts = urlsplit(config.endpoint)
        self._secure = parts.scheme == "https"
        self._host = parts.netloc
        self._timeout_s = config.read_timeout_s
        self._region = config.region or ""
        self._credentials = config.credentials
        self._free: deque[http.client.HTTPConnection] = deque(maxlen=_CONNECTIONS_MAX)

    def get(self, path: str, query: Mapping[str, str], bytes_max: int) -> bytes | None:
        """Return the body of an answer 200 of known length; None for everything else."""
        canonical = quote(path, safe="/-_.~")
        asked = "&".join(
            f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}"
            for name, value in sorted(query.items())
        )
        where = (self._host, canonical, asked)
        headers = signed(self._credentials, self._region, where, time.time())
        target = f"{canonical}?{asked}" if asked else canonical
        with suppress(OSError, http.client.HTTPException, ValueError):
            try:
                connection = self._free.pop()
            except IndexError:
                kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
                connection = kind(self._host, timeout=self._timeout_s)
            done = False
            try:
                connection.request("GET", target, headers=headers)
                answer = connection.getresponse()
                length = int(answer.headers.get("Content-Length", "-1"))
                if answer.status != http.client.OK or not 0 <= length <= bytes_max:
                    return None
                body = answer.read()
                done = True
            finally:
                if done and not answer.will_close:
                    self._free.append(connection)
                else:
                    connection.close()
            return body if len(body) == length else None
        return None


def signed(
    credentials: Credentials, region: str, where: tuple[str, str, str], now_s: float
) -> dict[str, str]:
    """Return the headers of a GET without body, signed by AWS's Signature Version 4.

    ``where`` is host, path and query as they are sent: encoded, the query's parts sorted.
    """
    host, path, query = where
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    headers = {"host": host, "x-amz-content-sha256": _OF_NOTHING, "x-amz-date": at}
    if credentials.session_token is not None:
        headers["x-amz-security-token"] = credentials.session_token.reveal()
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = f"GET\n{path}\n{query}\n{lines}\n{names}\n{_OF_NOTHING}"
    scope = f"{at[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{credentials.secret_access_key.reveal()}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{digest}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    return {
        **headers,
        "Authorization": (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key_id}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}"
        ),
    }


def _page(body: bytes, prefix: str) -> tuple[list[ObjectInfo], str] | None:
    """Return the objects of a listing's page, and the token of the next; None if it is not plain.

    A key outside the prefix, or a page that promises more and says not where, is not plain.
    """
    if b"<!DOCTYPE" in body[:1024] or b"<!ENTITY" in body:
        return None
    try:
        root = ET.fromstring(body)  # noqa: S314  # no DOCTYPE, so there is no entity to expand
    except ET.ParseError:
        return None
    if root.tag != f"{_XML}ListBucketResult":
        return None
    infos = []
    for item in root.iter(f"{_XML}Contents"):
        key, size = item.findtext(f"{_XML}Key") or "", item.findtext(f"{_XML}Size") or ""
        if not key.startswith(prefix) or not (size.isascii() and size.isdigit()):
            return None
        infos.append(ObjectInfo(key[len(prefix) :], int(size), etag=item.findtext(f"{_XML}ETag")))
    token = root.findtext(f"{_XML}NextContinuationToken") or ""
    if (root.findtext(f"{_XML}IsTruncated") == "true") != bool(token):
        return None
    return infos, token
