"""A lake's location and the settings to reach it: one frozen value, from a URI and environment.

``s3://bucket/prefix`` is an S3-compatible store; ``file:///path`` and a plain path are a local
directory. Nothing reads the environment after :meth:`StoreConfig.from_env`. Secrets never appear
in ``repr``. No client library is imported here; the value only returns options for boto3 and
delta-rs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import unquote, urlsplit

from broker.errors import InvalidConfigError
from broker.model.data_key import StreamDataKeys
from broker.model.secret import Secret

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A key pair; a temporary one has a session token, and may say when it ends."""

    access_key_id: str
    secret_access_key: Secret
    session_token: Secret | None = None
    expires_us: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "secret_access_key", Secret.of(self.secret_access_key))
        object.__setattr__(self, "session_token", Secret.of(self.session_token))


class CredentialSource(Protocol):
    """Gives temporary credentials, and others before they end. Any thread; may block."""

    def __call__(self) -> Credentials:
        """Return credentials that are good for some minutes at least; they say when they end."""

    def may_read(self, uri: str) -> bool:
        """Tell whether the credentials are good for the table at a URI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """One root in one store, and the settings to reach it.

    ``uri`` is canonical: no trailing slash, ``file://`` and an absolute path for a directory.
    """

    uri: str
    endpoint: str | None = None  # None: AWS itself
    region: str | None = None
    path_style: bool = False
    profile: str | None = None
    credentials: Credentials | None = None  # None: the client library's own chain
    vended: CredentialSource | None = None  # asked in place of the chain
    single_writer: bool = False  # accept a store that ignores conditional PUT
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0
    attempts_max: int = 4  # per request, with jittered exponential backoff between them
    upload_deadline_s: float = 120.0  # for a whole upload with all its attempts
    # The key provider of encrypted tables, see broker/keys; empty: this process has none.
    key_provider: str = ""
    keyring_file: str = ""
    kms_key_id: str = ""
    # How the keys of this stream are wrapped now, if a broker told; files name an older wrapping.
    data_keys: StreamDataKeys | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if canonical_uri(self.uri) != self.uri:
            raise InvalidConfigError(
                f"not a canonical location: {self.uri!r}; use StoreConfig.from_env", uri=self.uri
            )

    @classmethod
    def from_env(
        cls, uri: str, env: Mapping[str, str] | None = None, *, single_writer: bool = False
    ) -> StoreConfig:
        """Read endpoint, region, path style and credentials from environment variables.

        ``HEADWATER_S3_ENDPOINT`` wins over ``AWS_ENDPOINT_URL_S3`` and ``AWS_ENDPOINT_URL``;
        ``HEADWATER_ENCRYPTION_PROVIDER`` and its setting name the keys of encrypted tables.
        ``HEADWATER_S3_PATH_STYLE`` defaults to true for a custom endpoint. ``AWS_PROFILE`` and the
        rest of the usual chain are left to the client library when no key pair is given.

        Raises:
            InvalidConfigError: the URI or a variable is not valid.
        """
        env = os.environ if env is None else env
        uri = canonical_uri(uri)
        keys = _key_provider(env)
        if not uri.startswith("s3://"):
            return cls(uri=uri, single_writer=single_writer, **keys)
        endpoint = (
            env.get("HEADWATER_S3_ENDPOINT")
            or env.get("AWS_ENDPOINT_URL_S3")
            or env.get("AWS_ENDPOINT_URL")
            or None
        )
        if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
            raise InvalidConfigError(f"the S3 endpoint {endpoint!r} is not an http(s) URL")
        region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or None
        if region is None and endpoint is not None:
            region = "us-east-1"  # S3-compatible servers accept any region; clients need one
        return cls(
            uri=uri,
            endpoint=endpoint,
            region=region,
            path_style=_flag(env, "HEADWATER_S3_PATH_STYLE", default=endpoint is not None),
            profile=env.get("AWS_PROFILE") or None,
            credentials=_credentials(env),
            single_writer=single_writer,
            **keys,
        )

    @property
    def names_credentials(self) -> bool:
        """Whether the environment said which credentials to use, or where they are."""
        return self.credentials is not None or self.profile is not None

    def may_read(self, uri: str) -> bool:
        """Tell whether it makes sense to look for a table at a URI: credentials may be bound."""
        return self.vended is None or self.vended.may_read(uri)

    @property
    def kind(self) -> Literal["s3", "local"]:
        """Kind of the store."""
        return "s3" if self.uri.startswith("s3://") else "local"

    @property
    def bucket(self) -> str:
        """The bucket; S3 locations only."""
        assert self.kind == "s3", f"{self.uri} has no bucket"
        return urlsplit(self.uri).netloc

    @property
    def prefix(self) -> str:
        """Key prefix without slashes at its ends; empty when the root is the bucket."""
        assert self.kind == "s3", f"{self.uri} has no prefix"
        return urlsplit(self.uri).path.strip("/")

    @property
    def root(self) -> Path:
        """The directory; local locations only."""
        assert self.kind == "local", f"{self.uri} is not a directory"
        return Path(unquote(urlsplit(self.uri).path))

    def at(self, uri: str) -> StoreConfig:
        """Return the same store at another root; a local root cannot become S3 or back."""
        moved = canonical_uri(uri)
        if moved.startswith("s3://") != (self.kind == "s3"):
            raise InvalidConfigError(f"{uri} is not in the same kind of store as {self.uri}")
        return replace(self, uri=moved)

    def child(self, path: str) -> StoreConfig:
        """Return the same store with its root moved down by ``path``."""
        return replace(self, uri=f"{self.uri}/{path.strip('/')}")

    def boto3_session_kwargs(self) -> dict[str, Any]:
        """Return the arguments of ``boto3.session.Session``."""
        kwargs: dict[str, Any] = {"region_name": self.region}
        if self.credentials is not None:
            kwargs["aws_access_key_id"] = self.credentials.access_key_id
            token = self.credentials.session_token
            kwargs["aws_secret_access_key"] = self.credentials.secret_access_key.reveal()
            kwargs["aws_session_token"] = None if token is None else token.reveal()
        elif self.profile is not None:
            kwargs["profile_name"] = self.profile
        return kwargs

    def storage_options(
        self, credentials: Credentials | None = None, *, region: str | None = None
    ) -> dict[str, str]:
        """Return delta-rs's options; ``credentials`` and ``region`` may come from a profile."""
        if self.kind == "local":
            return {}
        options = {
            "timeout": f"{int(self.read_timeout_s)}s",
            "connect_timeout": f"{int(self.connect_timeout_s)}s",
            "max_retries": str(self.attempts_max - 1),
            "retry_timeout": f"{int(self.upload_deadline_s)}s",
            "aws_virtual_hosted_style_request": "false" if self.path_style else "true",
        }
        if (region or self.region) is not None:
            options["aws_region"] = str(region or self.region)
        if self.endpoint is not None:
            options["aws_endpoint"] = self.endpoint
            options["aws_allow_http"] = str(self.endpoint.startswith("http://")).lower()
        credentials = credentials or self.credentials
        if credentials is not None:
            options["aws_access_key_id"] = credentials.access_key_id
            options["aws_secret_access_key"] = credentials.secret_access_key.reveal()
            if credentials.session_token is not None:
                options["aws_session_token"] = credentials.session_token.reveal()
        return options


def canonical_uri(uri: str) -> str:
    """Return the one spelling of a location: ``s3://…`` or ``file:///…``, no slash at the end.

    A path is URL-encoded once, here. delta-rs 1.6 decodes its URI twice, so a name that looks like
    an escape (``100%25``, ``a%20b``) would mean two different places. Such a name is refused, and
    so is a backslash.

    Raises:
        InvalidConfigError: another scheme, a missing bucket, ``..`` or such a name in the path.
    """
    text = uri.strip()
    parts = urlsplit(text)
    scheme = "s3" if parts.scheme in ("s3a", "s3n") else parts.scheme
    if scheme == "s3":
        segments = [piece for piece in parts.path.split("/") if piece]
        if not parts.netloc or parts.query or parts.fragment or ".." in segments:
            raise InvalidConfigError(f"{uri!r} is not s3://bucket/prefix", uri=uri)
        return "/".join([f"s3://{parts.netloc}", *_plain(segments, uri)])
    if scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise InvalidConfigError(f"{uri!r} names a host; write file:///path", uri=uri)
        return _directory_uri(unquote(parts.path), uri)
    if "://" in text or not text:
        raise InvalidConfigError(
            f"{uri!r} is not a location; write s3://bucket/prefix, file:///path or a path", uri=uri
        )
    return _directory_uri(str(Path(text).expanduser()), uri)


def _directory_uri(path: str, uri: str) -> str:
    # Not resolve(): the lake keeps its name if a symbolic link in its path is changed.
    absolute = Path(os.path.abspath(path))  # noqa: PTH100
    _plain(absolute.parts[1:], uri)
    return absolute.as_uri()


def _plain(names: Sequence[str], uri: str) -> Sequence[str]:
    """Return the names of a path; refuse a name that libraries would decode differently."""
    for name in names:
        if "\\" in name or unquote(name) != name:
            raise InvalidConfigError(
                f"{uri!r}: {name!r} holds a backslash, or a percent sign before two hexadecimal "
                "digits, which would be decoded to another name; choose another place",
                uri=uri,
            )
    return names


def _flag(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = env.get(name, "").strip().lower()
    if not text:
        return default
    if text not in _TRUE | _FALSE:
        raise InvalidConfigError(f"{name}={text!r} is neither true nor false; set one of the two")
    return text in _TRUE


def _key_provider(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the key provider that the variables name; a broker's configuration checks them."""
    return {
        "key_provider": env.get("HEADWATER_ENCRYPTION_PROVIDER", ""),
        "keyring_file": env.get("HEADWATER_ENCRYPTION_KEYRING_FILE", ""),
        "kms_key_id": env.get("HEADWATER_ENCRYPTION_KMS_KEY_ID", ""),
    }


def _credentials(env: Mapping[str, str]) -> Credentials | None:
    key, secret = env.get("AWS_ACCESS_KEY_ID"), env.get("AWS_SECRET_ACCESS_KEY")
    if not key and not secret:
        return None
    if not key or not secret:
        raise InvalidConfigError(
            "set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or neither of them"
        )
    return Credentials(
        access_key_id=key,
        secret_access_key=Secret(secret),
        session_token=Secret.of(env.get("AWS_SESSION_TOKEN") or None),
    )
