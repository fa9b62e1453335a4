"""A change of a tenant is in force with the next question, of open calls, too."""

from __future__ import annotations

import pytest

from broker.errors import AccessDeniedError, InvalidRequestError
from broker.model.access import Caller, Grant
from broker.model.tenant import Tenant
from broker.runtime.api.access import Access
from simkit.brokers.memory_broker import MemoryBroker

ANN = Caller(principal="ann")


def broker(*, enabled: bool = True) -> Access:
    """Return who decides at a broker."""
    memory = MemoryBroker()
    return Access(memory.metadata, memory.clock, enabled=enabled, namespace="default")


def test_a_change_is_in_force_with_the_next_question() -> None:
    """Without a change the same judge goes on, so that open calls need not ask again."""
    access = broker()
    stream = access.stream("shop-in")
    access.grant([Grant(principal="ann", kind="stream", pattern="*", actions=("consume",))])
    access.tenants.create(Tenant(name="hr", owners=("ann",)))
    with pytest.raises(AccessDeniedError):
        access.require(ANN, "consume", stream)
    version = access.version
    assert access.version is version
    access.tenants.alter("hr", {"owners": ()})
    assert access.version is not version
    access.require(ANN, "consume", stream)


def test_a_broker_that_asks_nobody_takes_no_tenant() -> None:
    """Anybody could make one."""
    with pytest.raises(InvalidRequestError, match="asks nobody"):
        broker(enabled=False).tenants.create(Tenant(name="hr"))
