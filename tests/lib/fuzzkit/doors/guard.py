"""What a broker with TLS and access asks at its doors, and what strangers show there instead."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from fuzzkit.entries.of_access import jwks, signed
from fuzzkit.mutation import mutated
from fuzzkit.registry import decoders
from headwater.client.address import read_token
from simkit.servers.certificates import Authority, Pair

_TOKEN_BYTES_MAX: Final = 12_000  # above it gRPC itself refuses the headers
_ALPN: Final = ["h2", "http/1.1"]


@dataclass(frozen=True)
class Guard:
    """The files of a guarded broker and of those who come to its doors."""

    folder: Path

    @classmethod
    def made_in(cls, folder: Path) -> Guard:
        """Write an authority, a broker's certificate and a client's, and the keys of JWTs."""
        folder.mkdir()
        authority = Authority()
        authority.files(folder)
        _write(folder / "client", authority.issue("client"))
        (folder / "keys.json").write_bytes(jwks())
        return cls(folder)

    @property
    def ca_file(self) -> Path:
        """The authority of brokers and of clients."""
        return self.folder / "ca.crt"

    @property
    def owner_token_file(self) -> Path:
        """The token that may do everything; the broker makes it."""
        return self.folder / "owner.token"

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return the settings of the broker."""
        door = {
            "tls_cert_file": str(self.folder / "broker.crt"),
            "tls_key_file": str(self.folder / "broker.key"),
            "tls_client_ca_file": str(self.ca_file),
        }
        access = {
            "enabled": True,
            "owner_token_file": str(self.owner_token_file),
            "jwt_keys_file": str(self.folder / "keys.json"),
            "jwt_issuer": "i",
            "jwt_audience": "a",
        }
        return {"flight": door, "http": dict(door), "liftbridge": dict(door), "access": access}

    def environment(self) -> dict[str, str]:
        """Return what an honest client has in its environment: it may do everything."""
        return {
            "HEADWATER_TLS_CA_FILE": str(self.ca_file),
            "HEADWATER_TLS_CERT_FILE": str(self.folder / "client.crt"),
            "HEADWATER_TLS_KEY_FILE": str(self.folder / "client.key"),
            "HEADWATER_TOKEN_FILE": str(self.owner_token_file),
        }

    @cached_property
    def client(self) -> Pair:
        """The certificate of a client whom TLS lets in."""
        return Pair(
            (self.folder / "client.crt").read_bytes(), (self.folder / "client.key").read_bytes()
        )

    @cached_property
    def inside(self) -> ssl.SSLContext:
        """Of that client."""
        return self._context(self.folder / "client")

    @cached_property
    def outside(self) -> tuple[ssl.SSLContext, ...]:
        """Of clients whom TLS keeps out: no certificate, another authority's, an ended one."""
        others = Authority("another"), Authority("older", days=-0.01)
        for number, other in enumerate(others):
            _write(self.folder / f"outside{number}", other.issue("client"))
        found = [self._context(None)]
        found += [self._context(self.folder / f"outside{number}") for number in range(len(others))]
        old = self._context(self.folder / "client")
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        return (*found, old)

    def context(self, draw: random.Random) -> ssl.SSLContext | None:
        """Choose how a stranger connects; None: without TLS."""
        if draw.random() < 0.6:
            return self.inside
        return draw.choice((None, *self.outside))

    def token(self, draw: random.Random | None) -> str | None:
        """Choose what a stranger shows, or nothing; without ``draw`` return the owner's token."""
        if draw is None:
            return read_token(self.owner_token_file).reveal()
        return draw.choice(_TOKENS)(self, draw)

    def _context(self, pair: Path | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self.ca_file)
        context.set_alpn_protocols(_ALPN)
        if pair is not None:
            context.load_cert_chain(pair.with_suffix(".crt"), pair.with_suffix(".key"))
        return context


def _write(path: Path, pair: Pair) -> None:
    path.with_suffix(".crt").write_bytes(pair.cert)
    path.with_suffix(".key").write_bytes(pair.key)


def _owners(guard: Guard, _: random.Random) -> str:
    return read_token(guard.owner_token_file).reveal()


def _spoilt(guard: Guard, draw: random.Random) -> str:
    found = mutated(draw, [_owners(guard, draw).encode()]).decode("latin-1")
    return "".join(one for one in found if one.isprintable() and one.isascii())


def _claims(_: Guard, draw: random.Random) -> str:
    return signed(mutated(draw, decoders()["jwt_claims"].seeds))[:_TOKEN_BYTES_MAX]


def _ended(_: Guard, draw: random.Random) -> str:
    ends = draw.choice((b"1", b"-1", b"1e400", b'"x"', b"null", b"9" * 400, b"[]"))
    return signed(b'{"iss":"i","aud":"a","sub":"ann","exp":' + ends + b"}")


def _algorithm(_: Guard, draw: random.Random) -> str:
    seeds = [*decoders()["jwt_header"].seeds, b'{"alg":"none"}', b'{"alg":"HS256","kid":[]}']
    return signed(decoders()["jwt_claims"].seeds[0], mutated(draw, seeds))[:_TOKEN_BYTES_MAX]


def _huge(_: Guard, draw: random.Random) -> str:
    return draw.choice(("hw_", "", "a.", ".")) * draw.randrange(1, 4000)


_TOKENS: Final[tuple[Callable[[Guard, random.Random], str | None], ...]] = (
    lambda _guard, _draw: None, _owners, _owners, _spoilt, _claims, _ended, _algorithm, _huge,
)  # fmt: skip
