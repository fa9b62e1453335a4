"""How a test's clients reach brokers that ask who calls: an authority's file, and a token's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headwater.client import Client
from headwater.client.address import read_token
from headwater.liftbridge import AsyncLiftbridge, Liftbridge, Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The files of a principal; empty: brokers ask nobody, and have no TLS."""

    tls_ca_file: str = ""
    token_file: str = ""

    def client(self, url: str) -> Client:
        """Return a client of Flight."""
        if not self.token_file:
            return Client(url)
        return Client(url, tls_ca_file=self.tls_ca_file, token=read_token(Path(self.token_file)))

    def liftbridge(self, addresses: str) -> Liftbridge:
        """Return a client of Liftbridge's API."""
        if not self.token_file:
            return Liftbridge(addresses)
        token = read_token(Path(self.token_file))
        return Liftbridge(addresses, tls=Tls(ca_file=self.tls_ca_file), token=token)

    def async_liftbridge(self, addresses: str) -> AsyncLiftbridge:
        """Return a client of Liftbridge's API for asyncio; made in its event loop."""
        if not self.token_file:
            return AsyncLiftbridge(addresses)
        token = read_token(Path(self.token_file))
        return AsyncLiftbridge(addresses, tls=Tls(ca_file=self.tls_ca_file), token=token)


OPEN = Login()
