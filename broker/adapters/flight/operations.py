"""The Flight actions for operators, over the OperatorApi port; part of the Flight service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.errors import InvalidRequestError
from broker.ports.operators import OperatorApi


def operate(
    api: OperatorApi | None, action: str, values: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Run one action with checked values; return its results.

    Raises:
        InvalidRequestError: this server has no OperatorApi.
        HeadwaterError: the broker refused the action.
    """
    if api is None:
        raise InvalidRequestError(f"this server does not offer the action {action}", field="action")
    match action:
        case "cluster_status":
            return [api.status(**values).to_dict()]
        case "cluster_controllers":
            return [api.controllers().to_dict()]
        case "change_controller":
            return [api.change_controller(**values).to_dict()]
        case "cluster_replicas":
            return [one.to_dict() for one in api.replicas()]
        case "compact_replicas":
            return [one.to_dict() for one in api.compact(**values)]
        case "move_partition":
            return [api.move(**values).to_dict()]
        case "transfer_leader":
            return [api.transfer_leader(**values).to_dict()]
        case "balance_leaders":
            return [one.to_dict() for one in api.balance()]
        case "elect_unclean":
            return [api.elect_unclean(**values).to_dict()]
        case _:
            assert action == "remove_broker", f"no operation {action}"
            api.remove_broker(**values)
            return [{}]
