"""The Flight actions for operators: their fields and the bounds of each.

Part of the table :data:`broker.codec.flight.actions.ACTIONS`, which validates their bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.codec.flight.protocol import short_text, stream_name, true_or_false, whole_number
from broker.errors import InvalidRequestError
from broker.model.ids import is_stream_name
from broker.model.offsets import OFFSET_MAX
from broker.model.stream import PARTITIONS_MAX, REPLICAS_MAX

CONFIRM_MS_MAX: Final = 60_000
_PARTITION_MAX: Final = 1 << 20
_OPERATOR_BYTES_MAX: Final = 256
_TICKET_BYTES_MAX: Final = 64

Check = Callable[[object], Any]


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """One action: its help, and the check of each field of its body."""

    help: str
    fields: Mapping[str, Check]
    defaults: Mapping[str, Any]


def _name(value: object) -> str:
    return stream_name(value, "name")


def _broker_of(field: str) -> Check:
    def check(value: object) -> str:
        if not isinstance(value, str) or not is_stream_name(value):
            raise InvalidRequestError(
                f"{field} must be a broker's id: 1 to 128 characters of A-Z a-z 0-9 _ -",
                field=field,
            )
        return value

    return check


def _brokers(value: object) -> list[str]:
    if not isinstance(value, list) or not 1 <= len(value) <= REPLICAS_MAX:
        raise InvalidRequestError(
            f"target must be a list of 1 to {REPLICAS_MAX} broker ids", field="target"
        )
    check = _broker_of("target")
    return [check(one) for one in value]


def _partition(value: object) -> int:
    return whole_number(value, "partition", low=0, high=_PARTITION_MAX)


def partition_numbers(value: object) -> list[int]:
    """Return a list of partition numbers; raises InvalidRequestError."""
    if not isinstance(value, list) or len(value) > PARTITIONS_MAX:
        raise InvalidRequestError(
            f"partitions must be a list of at most {PARTITIONS_MAX} numbers", field="partitions"
        )
    return [whole_number(one, "partitions", low=0, high=PARTITIONS_MAX) for one in value]


def _ticket(value: object) -> str:
    return short_text(value, "ticket", bytes_max=_TICKET_BYTES_MAX)


def _epoch(value: object) -> int:
    return whole_number(value, "partition_epoch", low=0, high=OFFSET_MAX)


def _offset(value: object) -> int:
    return whole_number(value, "known_end", low=0, high=OFFSET_MAX)


def _operator(value: object) -> str:
    return short_text(value, "operator", bytes_max=_OPERATOR_BYTES_MAX)


def _confirm_ms(value: object) -> int:
    return whole_number(value, "confirm_ms", low=1, high=CONFIRM_MS_MAX)


def _votes(value: object) -> bool:
    return true_or_false(value, "votes")


def _accepted(value: object) -> bool:
    return true_or_false(value, "accept_data_loss")


OPERATIONS: Final[Mapping[str, ActionSpec]] = {
    "cluster_status": ActionSpec(
        "Return the state of the cluster's brokers and partitions. {confirm_ms?} -> the status.",
        {"confirm_ms": _confirm_ms},
        {"confirm_ms": 1_000},
    ),
    "cluster_controllers": ActionSpec(
        "List the brokers that vote on the metadata, and its observers. {} -> one result.", {}, {}
    ),
    "change_controller": ActionSpec(
        "Take the next step of making a broker a controller, or an observer if votes is false. "
        "{broker, votes} -> {done, reason, told_by, leader}: until done, ask leader again.",
        {"broker": _broker_of("broker"), "votes": _votes},
        {},
    ),
    "cluster_replicas": ActionSpec(
        "Return the state of the replicas on the asked broker. {} -> one result per replica.",
        {},
        {},
    ),
    "compact_replicas": ActionSpec(
        "Compact the logs of the asked broker's replicas now. {name, partitions?, ticket} -> one "
        "result per replica; no partitions means all; ask again with the same ticket until each "
        "state is final.",
        {"name": _name, "partitions": partition_numbers, "ticket": _ticket},
        {"partitions": []},
    ),
    "move_partition": ActionSpec(
        "Begin to move a partition to other brokers. {name, partition, target} -> what was done.",
        {"name": _name, "partition": _partition, "target": _brokers},
        {},
    ),
    "transfer_leader": ActionSpec(
        "Let another in-sync replica lead. {name, partition, to} -> what was done.",
        {"name": _name, "partition": _partition, "to": _broker_of("to")},
        {},
    ),
    "balance_leaders": ActionSpec(
        "Give leadership back to preferred leaders. {} -> what was done, one per partition.",
        {},
        {},
    ),
    "elect_unclean": ActionSpec(
        "Let the given broker lead although records are lost. {name, partition, broker, "
        "partition_epoch, known_end, operator, accept_data_loss} -> what was done.",
        {
            "name": _name,
            "partition": _partition,
            "broker": _broker_of("broker"),
            "partition_epoch": _epoch,
            "known_end": _offset,
            "operator": _operator,
            "accept_data_loss": _accepted,
        },
        {"accept_data_loss": False},
    ),
    "remove_broker": ActionSpec(
        "Forget a broker that is fenced and holds no replica. {broker} -> {}.",
        {"broker": _broker_of("broker")},
        {},
    ),
}
