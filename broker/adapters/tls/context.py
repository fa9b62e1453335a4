"""A TLS context that is replaced as a whole while a door is open.

Changing a context that is in use would leave it half changed if one file is wrong, and could never
take an authority away. So each change makes a new context, and the next connection uses it.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from broker.errors import InvalidConfigError

_PEM: Final = re.compile(rb"-----BEGIN ([^-\n]+)-----")  # what a file says that it has


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files: a chain whose first certificate is ours, its key, the other side's authorities."""

    cert_file: Path
    key_file: Path
    ca_file: Path | None = None  # set: the other side must show a certificate of it
    crl_file: Path | None = None  # set: none that a list here revokes

    def all(self) -> tuple[Path, ...]:
        """Return the files that there are."""
        found = (self.cert_file, self.key_file, self.ca_file, self.crl_file)
        return tuple(one for one in found if one is not None)


class LiveContext(ssl.SSLContext):
    """Gives each new connection the newest context. Any thread."""

    make: Callable[[], ssl.SSLContext]
    _newest: ssl.SSLContext

    def __new__(cls, make: Callable[[], ssl.SSLContext]) -> Self:
        """Make the first context; ``make`` raises InvalidConfigError if a file cannot be used."""
        live = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)  # itself it is never used
        live.make = make
        live._newest = make()
        return live

    def use(self, newest: ssl.SSLContext) -> None:
        """Use another context from the next connection on."""
        self._newest = newest

    def wrap_socket(self, *args: Any, **named: Any) -> ssl.SSLSocket:
        """See ``ssl.SSLContext.wrap_socket``."""
        return self._newest.wrap_socket(*args, **named)

    def wrap_bio(self, *args: Any, **named: Any) -> ssl.SSLObject:
        """See ``ssl.SSLContext.wrap_bio``."""
        return self._newest.wrap_bio(*args, **named)


class _ConnectedSocket(ssl.SSLSocket):
    """The TLS socket of a connection that may have been reset since.

    Python 3.11's wrap_socket asks for the peer's name to learn whether there is a connection. It
    then raises for a reset one, and loses the descriptor that it has taken from its caller.
    """

    def getpeername(self) -> Any:
        """Return the peer's address, or None if the connection was reset."""
        with contextlib.suppress(OSError):
            return super().getpeername()
        return None


def wrapped(context: ssl.SSLContext, plain: socket.socket, *, server_side: bool) -> ssl.SSLSocket:
    """Return the TLS socket of a connection, before its handshake; ``plain`` is then empty.

    The context must be of :func:`load`. If the connection has been reset, the handshake tells.
    """
    return context.wrap_socket(plain, server_side=server_side, do_handshake_on_connect=False)


def server_context(files: TlsFiles, *, protocols: Sequence[str] = ()) -> ssl.SSLContext:
    """Return the context of a door for clients, which may ask for one of ``protocols`` (ALPN).

    Raises:
        InvalidConfigError: a file cannot be used; the text names it.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load(context, files)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    if files.ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        # A session that is resumed would not have its certificate verified again.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


def load(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Load the files into a context, whose connections may be reset at any time.

    Raises:
        InvalidConfigError: a file cannot be used; the text names it.
    """
    context.sslsocket_class = _ConnectedSocket
    for path in files.all():
        try:
            path.read_bytes()
        except OSError as cause:
            raise InvalidConfigError(f"cannot read {path}: {cause.strerror}") from cause
    try:
        # Without a password here, OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(files.cert_file, files.key_file, password="")
    except (ssl.SSLError, OSError) as cause:
        raise InvalidConfigError(
            f"{files.cert_file} and its key {files.key_file} cannot be used: {cause}"
        ) from cause
    if files.ca_file is not None:
        try:
            context.load_verify_locations(files.ca_file)
        except (ssl.SSLError, OSError) as cause:
            raise InvalidConfigError(f"{files.ca_file} cannot be used: {cause}") from cause
    if files.crl_file is not None:
        _load_revocations(context, files.crl_file)


def _load_revocations(context: ssl.SSLContext, path: Path) -> None:
    """Refuse certificates that are on a list, and all whose issuer has no list in force here."""
    if set(_PEM.findall(path.read_bytes())) != {b"X509 CRL"}:  # a certificate would be trusted
        raise InvalidConfigError(
            f"{path} must have lists of revoked certificates (X509 CRL, in PEM) and nothing else"
        )
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as cause:
        raise InvalidConfigError(f"{path} cannot be used: {cause}") from cause
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
