"""Whom a token names, and when it names nobody any more."""

from __future__ import annotations

import pytest

from broker.core.access.static_tokens import TOKEN_BYTES, make_token, split_token
from broker.errors import UnauthenticatedError
from broker.runtime.api.access import Access
from simkit.brokers.memory_broker import MemoryBroker

TOKEN = make_token(bytes(range(TOKEN_BYTES)))


@pytest.fixture
def access() -> Access:
    """Give a broker that asks, with one token of ann that ends."""
    broker = MemoryBroker()
    access = Access(broker.metadata, broker.clock, enabled=True, namespace="default")
    token_id, digest = split_token(TOKEN)
    end_us = broker.clock.now_us() + 10
    access.create_token(token_id, digest, "ann", expires_us=end_us, note="", created_by="")
    return access


def test_a_token_names_its_principal(access: Access) -> None:
    """A token counts before a certificate."""
    caller = access.identify(bearer=TOKEN, certificate="bob", peer="here")
    assert (caller.principal, caller.via, caller.peer) == ("ann", "token", "here")
    access.require_known(caller)


@pytest.mark.parametrize(
    "wrong",
    [
        TOKEN[:-1] + ("0" if TOKEN[-1] != "0" else "1"),
        make_token(bytes(8) + bytes(range(8, TOKEN_BYTES))),
        TOKEN.upper(),
        TOKEN + "\n",
        "",
        "x" * 100_000,
        "é" * 100,
    ],
)
def test_any_other_text_names_nobody(access: Access, wrong: str) -> None:
    """One digit of the secret, another id, or no token at all: the answer is the same."""
    with pytest.raises(UnauthenticatedError, match="not known here, has ended, or was revoked"):
        access.identify(bearer=wrong, certificate=None, peer="")


def test_a_token_that_has_ended_names_nobody(access: Access) -> None:
    """For new calls; test_access_flight.py has the open ones."""
    clock = access._clock
    clock.advance(us=10)  # type: ignore[attr-defined]
    with pytest.raises(UnauthenticatedError):
        access.identify(bearer=TOKEN, certificate=None, peer="")
