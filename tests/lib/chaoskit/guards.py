"""A cluster that asks who calls: its certificates and principals, and what may change under load.

The actors of a run are principals with the grants that they need, and a quota above what they use.
A *guest*, with a stream of its own, is whom the stories are about: its grants, tokens and quotas
change, and after each change it is seen to be able, or unable, at the doors where it has an open
read and an open write.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from broker.errors import (
    AccessDeniedError,
    AccessError,
    HeadwaterError,
    QuotaExceededError,
    UnauthenticatedError,
)
from broker.model.access import CLUSTER, Grant
from broker.model.quota import Quota
from broker.model.secret import Secret
from chaoskit.cluster import ChaosError
from clusterkit.login import Login
from headwater.client import Client, Fetch
from headwater.client.access import AccessCalls, NewToken
from headwater.client.address import read_token
from headwater.local.cluster_certificates import make_certificates
from headwater.local.embedded import LOOPBACK
from headwater.local.private_files import write_private

OPERATOR: Final = "operator"  # of the harness
ACTOR: Final = "actor"  # publishes, reads, and is a member of groups
_GUEST, _GUEST_STREAM = "guest", "guest"
_CLUSTER: Final = "headwater"
_IN_FORCE_S: Final = 5.0  # documented is one second; the machine is shared by a whole cluster
_ABLE_S: Final = 30.0
_QUIET_S: Final = 0.5
_STEP_S: Final = 0.05
_AMPLE: Final = Quota(principal=ACTOR, publish_bytes_per_s=1 << 30, read_bytes_per_s=1 << 30)
_NARROW: Final = Quota(principal=_GUEST, requests_per_s=1)


def _grant(kind: Any, pattern: str, *actions: Any, principal: str = ACTOR) -> Grant:
    return Grant(principal=principal, kind=kind, pattern=pattern, actions=actions)


_READS: Final = _grant("stream", _GUEST_STREAM, "consume", principal=_GUEST)
_WRITES: Final = _grant("stream", _GUEST_STREAM, "publish", principal=_GUEST)


class Guards:
    """The access of one cluster. One thread."""

    def __init__(self, folder: Path, brokers: tuple[str, ...]) -> None:
        """Make certificates for the doors of ``brokers``, below ``folder``."""
        self._folder, self._brokers = folder, brokers
        self._certificates = folder / "doors"
        self._issue()
        self._guest: _Guest | None = None
        self._guest_token: NewToken | None = None
        self.took_s: list[float] = []  # from each change until it was in force

    def _issue(self) -> None:
        hosts = dict.fromkeys(self._brokers, (LOOPBACK,))
        make_certificates(
            self._certificates, cluster=_CLUSTER, brokers=list(self._brokers), hosts=hosts
        )

    @property
    def ca_file(self) -> Path:
        """The authority that clients trust."""
        return self._certificates / "ca.crt"

    def login(self, principal: str) -> Login:
        """Return how a principal reaches the brokers."""
        return Login(tls_ca_file=str(self.ca_file), token_file=str(self._token_file(principal)))

    def _token_file(self, principal: str) -> Path:
        return self._folder / f"{principal}.token"

    def settings(self, broker: str) -> dict[str, dict[str, Any]]:
        """Return the settings of a broker."""
        served = {
            "tls_cert_file": str(self._certificates / f"{broker}.crt"),
            "tls_key_file": str(self._certificates / f"{broker}.key"),
        }
        owner = str(self._token_file(f"owner-{broker}"))
        return {
            "flight": dict(served),
            "liftbridge": dict(served),
            "access": {"enabled": True, "owner_token_file": owner},
        }

    # ------------------------------------------------------------------ the beginning

    def set_up(self, url_of: Callable[[str], str], url: str, stream: str) -> None:
        """Make the principals, once all brokers serve; actors use ``stream``. Blocks."""
        first = self._brokers[0]
        owner = read_token(self._token_file(f"owner-{first}"))
        with Client(url_of(first), tls_ca_file=self.ca_file, token=owner) as client:
            access = AccessCalls(client)
            access.grant([_grant("cluster", CLUSTER, "admin", principal=OPERATOR)])
            for principal in (OPERATOR, ACTOR):
                self._keep(principal, access.create_token(principal).token)
            access.grant(
                [
                    _grant("stream", stream, "publish", "consume"),
                    _grant("group", "chaos-*", "consume"),
                    _READS,
                    _WRITES,
                ]
            )
            access.set_quota(_AMPLE)
            self._guest_token = access.create_token(_GUEST)
            self._keep(_GUEST, self._guest_token.token)
        with self.login(OPERATOR).client(url) as client:
            client.create_stream(_GUEST_STREAM, subject="chaos.guest")
        self._url = url

    def _keep(self, principal: str, token: Secret) -> None:
        write_private(self._token_file(principal), token.reveal() + "\n")

    # ------------------------------------------------------------------ changes

    def change(self, what: str, doors: Mapping[str, int]) -> None:
        """Change something, and see that it is in force; ``doors``: Liftbridge's port of brokers.

        Raises:
            ChaosError: it is not in force in time, or the guest may do what it must not.
        """
        if what == "replace the certificates":
            self._replace_certificates(doors)
        else:
            _OF_THE_GUEST[what](self)

    def _access(self, change: Callable[[AccessCalls], object]) -> float:
        """Make a change as the operator, again while controllers change; return when it counts."""
        deadline_s = time.monotonic() + _ABLE_S
        while True:
            try:
                with self.login(OPERATOR).client(self._url) as client:
                    change(AccessCalls(client))
                return time.monotonic()
            except HeadwaterError as error:
                if isinstance(error, AccessError) or time.monotonic() > deadline_s:
                    raise ChaosError(f"the operator is refused: {error}") from error
                time.sleep(_STEP_S)

    def _in_force(self, since_s: float, what: str, seen: Callable[[], bool]) -> None:
        self._until(seen, since_s + _IN_FORCE_S, f"{what}, {_IN_FORCE_S:.0f} s after the change")
        self.took_s.append(time.monotonic() - since_s)

    def _until(self, seen: Callable[[], bool], deadline_s: float, what: str) -> None:
        while not seen():
            if time.monotonic() > deadline_s:
                raise ChaosError(f"access: {what}")
            time.sleep(_STEP_S)

    def _arrives(self) -> _Guest:
        """Let the guest publish and read; return when it does both."""
        self._leaves()
        guest = self._guest = _Guest(self.login(_GUEST).client(self._url))
        self._until(guest.does_both, time.monotonic() + _ABLE_S, f"the guest cannot: {guest}")
        return guest

    def _leaves(self) -> None:
        if self._guest is not None:
            self._guest.close()
            self._guest = None

    def _revoke(self) -> None:
        guest = self._arrives()
        since_s = self._access(lambda access: access.revoke([_READS, _WRITES]))
        self._in_force(
            since_s,
            "the guest reads or writes on",
            lambda: guest.is_refused(AccessDeniedError, AccessDeniedError),
        )
        self._stays_out(guest)

    def _only_reads(self) -> None:
        guest = self._arrives()
        since_s = self._access(lambda access: access.revoke([_WRITES]))
        self._in_force(
            since_s, "the guest writes on", lambda: guest.is_refused(None, AccessDeniedError)
        )

    def _restore(self) -> None:
        self._access(lambda access: access.grant([_READS, _WRITES]))
        self._arrives()
        self._leaves()

    def _stays_out(self, guest: _Guest) -> None:
        before = guest.counts()
        time.sleep(_QUIET_S)
        if guest.counts() != before:
            raise ChaosError(f"access: the guest was refused and goes on: {guest}")

    def _replace_token(self) -> None:
        """Two tokens overlap; whoever holds the old one is out, the new one goes on."""
        guest, old = self._arrives(), self._guest_token
        assert old is not None, "the guest has one from the beginning"
        made: list[NewToken] = []
        self._access(lambda access: made.append(access.create_token(_GUEST)))
        self._guest_token = made[-1]
        self._keep(_GUEST, self._guest_token.token)
        with contextlib.closing(_Guest(self.login(_GUEST).client(self._url))) as newcomer:
            able_s = time.monotonic() + _ABLE_S
            self._until(newcomer.does_both, able_s, f"the new token does not work: {newcomer}")
            since_s = self._access(lambda access: access.revoke_token(old.token_id))
            self._in_force(
                since_s,
                "the old token works on",
                lambda: guest.is_refused(UnauthenticatedError, UnauthenticatedError),
            )
            self._stays_out(guest)
            able_s = time.monotonic() + _ABLE_S
            before = newcomer.counts()
            self._until(
                lambda: newcomer.is_beyond(before), able_s, f"the new token ended, too: {newcomer}"
            )

    def _limit(self) -> None:
        self._leaves()
        since_s = self._access(lambda access: access.set_quota(_NARROW))
        self._in_force(since_s, "the guest is not limited", self._is_throttled)

    def _end_limit(self) -> None:
        since_s = self._access(lambda access: access.remove_quota(_GUEST))
        self._in_force(since_s, "the guest is limited still", lambda: not self._is_throttled())
        self._arrives()
        self._leaves()

    def _is_throttled(self) -> bool:
        """Ask one question after the other; tell whether one is held back."""
        with self.login(_GUEST).client(self._url) as client:
            try:
                for _ in range(3):
                    client.call("whoami", {}, timeout_ms=200)
            except QuotaExceededError:
                return True
            except HeadwaterError:
                return False  # a broker is away: asked again
        return False

    def _replace_certificates(self, doors: Mapping[str, int]) -> None:
        """Put new certificates in the place of the old ones; each running broker serves them."""
        before = {broker: self._served(port) for broker, port in doors.items()}
        for broker in self._brokers:
            for suffix in ("crt", "key"):
                (self._certificates / f"{broker}.{suffix}").unlink()
        self._issue()
        wanted = {
            broker: ssl.PEM_cert_to_DER_cert((self._certificates / f"{broker}.crt").read_text())
            for broker in doors
        }
        if set(before.values()) & set(wanted.values()):
            raise ChaosError("access: the certificates are the old ones")
        since_s = time.monotonic()
        self._in_force(
            since_s,
            "an old certificate is served",
            lambda: all(self._served(port) == wanted[one] for one, port in doors.items()),
        )

    def _served(self, port: int) -> bytes | None:
        context = ssl.create_default_context(cafile=str(self.ca_file))
        with (
            contextlib.suppress(OSError),
            socket.create_connection((LOOPBACK, port), timeout=_IN_FORCE_S) as raw,
            context.wrap_socket(raw, server_hostname=LOOPBACK) as secured,
        ):
            return secured.getpeercert(binary_form=True)
        return None

    def close(self) -> None:
        """End the guest."""
        self._leaves()


_OF_THE_GUEST: Final[dict[str, Callable[[Guards], None]]] = {
    "take the guest's grants": Guards._revoke,
    "take the guest's right to publish": Guards._only_reads,
    "give the guest its grants": Guards._restore,
    "replace the guest's token": Guards._replace_token,
    "limit the guest": Guards._limit,
    "end the guest's limit": Guards._end_limit,
}
CHANGES: Final = frozenset(_OF_THE_GUEST) | {"replace the certificates"}


class _Guest:
    """Publishes and follows its stream, each in a thread, until it is refused or closed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._over = threading.Event()
        self._written_count = self._read_count = 0
        self._refused: dict[str, HeadwaterError] = {}
        self._fetch: Fetch | None = None
        self._writer, self._reader = (
            threading.Thread(target=self._run, args=(name, work), daemon=True)
            for name, work in (("writes", self._write), ("reads", self._read))
        )
        self._writer.start()
        self._reader.start()

    def _run(self, name: str, work: Callable[[], None]) -> None:
        while not self._over.is_set():
            try:
                work()
            except AccessError as error:
                self._refused[name] = error
                return
            except HeadwaterError:  # a broker is away
                self._over.wait(_STEP_S)

    def _write(self) -> None:
        with self._client.producer(_GUEST_STREAM) as producer:
            while not self._over.wait(_STEP_S):
                producer.send([b"from the guest"]).result(_ABLE_S)
                self._written_count += 1

    def _read(self) -> None:
        with self._client.fetch(_GUEST_STREAM, 0, "latest", follow=True) as self._fetch:
            for _ in self._fetch:
                self._read_count += 1
                if self._over.is_set():
                    return

    def counts(self) -> tuple[int, int]:
        """Return how often it has read and written."""
        return self._read_count, self._written_count

    def does_both(self) -> bool:
        """Tell whether it has read and written."""
        return all(self.counts())

    def is_beyond(self, before: tuple[int, int]) -> bool:
        """Tell whether it has read and written since."""
        return all(now > then for now, then in zip(self.counts(), before, strict=True))

    def is_refused(self, read: type[AccessError] | None, write: type[AccessError]) -> bool:
        """Tell whether its read and its write have ended with these errors; None: it goes on."""
        ended = {name: type(error) for name, error in self._refused.items()}
        wanted = {"writes": write} | ({} if read is None else {"reads": read})
        return ended == wanted

    def __str__(self) -> str:
        told = {name: f"{type(one).__name__}: {one}" for name, one in self._refused.items()}
        return f"{self._read_count} read, {self._written_count} written, refused {told}"

    def close(self) -> None:
        """End both. Blocks."""
        self._over.set()
        self._writer.join(_ABLE_S)  # before its connection goes: it would be waited for
        if self._fetch is not None:
            self._fetch.cancel()
        self._reader.join(_ABLE_S)
        self._client.close()
