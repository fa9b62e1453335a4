"""Every action in the table has a method that takes the fields of its body."""

from __future__ import annotations

import inspect
from unittest.mock import create_autospec

import pytest

from broker.adapters.flight.access_actions import AccessActions
from broker.adapters.flight.actions import StreamActions
from broker.adapters.flight.group_actions import GroupActions
from broker.adapters.flight.operations import operate
from broker.adapters.flight.places import Places
from broker.codec.flight.access_actions import ACCESS_ACTIONS
from broker.codec.flight.actions import ACTIONS
from broker.codec.flight.group_actions import GROUP_ACTIONS
from broker.codec.flight.operations import OPERATIONS
from broker.errors import InvalidRequestError
from broker.model.access import Caller
from broker.ports.access import AccessApi
from broker.ports.operators import OperatorApi


@pytest.mark.parametrize(
    "action", sorted(ACTIONS.keys() - OPERATIONS.keys() - ACCESS_ACTIONS.keys())
)
def test_an_action_has_a_method_that_takes_its_fields(action: str) -> None:
    """The service finds it by its name, so no type checker sees that one is missing."""
    place = GroupActions if action in GROUP_ACTIONS else StreamActions
    _, *fields = inspect.signature(getattr(place, action)).parameters
    fields = [name for name in fields if name != "is_wanted"]  # the call's own, not the client's
    assert set(fields) == ACTIONS[action].fields.keys()


@pytest.mark.parametrize("action", OPERATIONS)
def test_an_action_of_operators_reaches_its_port(action: str) -> None:
    """The service calls it with the fields of the body, and only if the port has the method."""
    api = create_autospec(OperatorApi, instance=True)
    operate(api, action, dict.fromkeys(OPERATIONS[action].fields))
    assert len(api.method_calls) == 1


@pytest.mark.parametrize("action", sorted(ACCESS_ACTIONS.keys() - {"whoami", "table_credentials"}))
def test_an_action_about_access_reaches_its_port(action: str) -> None:
    """The same for grants and tokens."""
    api = create_autospec(AccessApi, instance=True)
    api.grants.return_value = ()
    api.tokens.return_value = {}
    actions = AccessActions(api, None, Places("calls that wait", 1))
    actions.run(Caller(), action, dict.fromkeys(ACCESS_ACTIONS[action].fields))
    assert len(api.method_calls) == 1


def test_a_broker_that_vends_no_credentials_says_so() -> None:
    """As for an action that it does not know: readers then look for credentials elsewhere."""
    actions = AccessActions(create_autospec(AccessApi), None, Places("calls that wait", 1))
    with pytest.raises(InvalidRequestError) as caught:
        actions.run(Caller(), "table_credentials", {"name": "s"})
    assert caught.value.field == "action"
