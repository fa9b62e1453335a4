"""The rights that each call of each door needs: a table from a call to (action, resource). Pure.

``asks``: the caller needs each of these rights. ``known``: every caller with an identity may call.
``filtered``: the same, and the answer has only what the caller may describe. ``open``: anybody may.
A call that has no row here is refused, and ``tests/tidy/test_access_table.py`` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from broker.model.access import CLUSTER, Action, Kind

Values = Mapping[str, Any]
Names = Callable[[Values], Iterable[str]]
Way = Literal["asks", "known", "filtered", "open"]
By = Literal["name", "lease", "uuid"]


@dataclass(frozen=True, slots=True)
class Ask:
    """One right that a call needs, on each of the resources that its request names.

    A request may name a stream by a lease on the stream, or by the stream's uuid. The refusal does
    not tell whether there is such a stream then, nor its name.
    """

    action: Action
    kind: Kind
    names: Names
    by: By = "name"


@dataclass(frozen=True, slots=True)
class CallRow:
    """The rights that one call needs. A refused call is always audited, others if ``audited``."""

    asks: tuple[Ask, ...] = ()
    way: Way = "asks"
    audited: bool = True


def _field(name: str) -> Names:
    def names(values: Values) -> Iterable[str]:
        value = values.get(name)
        if value is None:
            return ()
        return (value,) if isinstance(value, str) else value

    return names


def _uuids(values: Values) -> Iterable[str]:
    """Return the streams of the positions to set, each once."""
    return dict.fromkeys(one.stream_uuid for one in values.get("positions", ()))


def _subject_of_config(values: Values) -> Iterable[str]:
    """Return the subject of a stream to create. The check of the body refuses other types later."""
    config = values.get("config")
    subject = config.get("subject") if isinstance(config, dict) else None
    return (subject,) if isinstance(subject, str) else ()


def _cluster(_: Values) -> Iterable[str]:
    return (CLUSTER,)


def _row(*asks: tuple[Action, Kind, Names], audited: bool = True) -> CallRow:
    return CallRow(tuple(Ask(*one) for one in asks), audited=audited)


def _on_stream(action: Action, field: str = "name", *, audited: bool = True) -> CallRow:
    return _row((action, "stream", _field(field)), audited=audited)


def _by_lease(*, audited: bool = True) -> CallRow:
    return CallRow((Ask("consume", "stream", _field("lease_id"), by="lease"),), audited=audited)


def _of_reader(*, audited: bool = True) -> CallRow:
    """Return the row of a call on a stream that may be made for a consumer group."""
    return _row(
        ("consume", "stream", _field("name")), ("consume", "group", _field("group")),
        audited=audited,
    )  # fmt: skip


def _on_group(action: Action, *, audited: bool = True) -> CallRow:
    return _row((action, "group", _field("group")), audited=audited)


def _on_cluster(action: Action, *, audited: bool = True) -> CallRow:
    return _row((action, "cluster", _cluster), audited=audited)


_KNOWN: Final = CallRow(way="known", audited=False)
_FILTERED: Final = CallRow(way="filtered", audited=False)
_OPEN: Final = CallRow(way="open", audited=False)

FLIGHT: Final[Mapping[str, CallRow]] = {
    # data and discovery
    "do_put": _on_stream("publish"),
    "do_get": _on_stream("consume"),
    "do_exchange": _KNOWN,
    "list_flights": _FILTERED,
    "get_flight_info": _on_stream("describe", audited=False),
    "get_schema": _OPEN,  # the same for every stream
    "list_actions": _OPEN,
    "poll_flight_info": _OPEN,  # not offered
    # actions on streams
    "create_stream": _row(
        ("create", "stream", _field("name")), ("attach", "subject", _subject_of_config)
    ),
    "describe_stream": _on_stream("describe", audited=False),
    "brokers": _KNOWN,
    "locate": _on_stream("describe", audited=False),
    "list_streams": _FILTERED,
    "alter_stream": _on_stream("alter"),
    "purge_partition": _on_stream("erase"),
    "rotate_key": _on_stream("alter"),
    "pause_stream": _on_stream("alter"),
    "resume_stream": _on_stream("alter"),
    "set_stream_readonly": _on_stream("alter"),
    "delete_stream": _on_stream("delete"),
    "stream_remains": _row(  # of a stream whose table is going to be deleted
        ("delete", "stream", _field("name")), ("erase", "stream", _field("name"))
    ),
    "take_lease": _on_stream("consume"),
    "renew_lease": _by_lease(audited=False),
    "drop_lease": _by_lease(),
    "list_leases": _on_stream("describe", audited=False),
    "cut": _on_stream("consume"),
    "check_cut": _on_stream("consume"),  # with it a read by a saved cut begins
    "high_watermarks": _on_stream("describe", "names", audited=False),
    "tier_status": _on_stream("describe", audited=False),
    "tier_flush": _on_stream("tier"),
    # consumer groups
    "join_group": _row(
        ("consume", "group", _field("group")), ("consume", "stream", _field("streams"))
    ),
    "leave_group": _on_group("consume"),
    "group_heartbeat": _on_group("consume", audited=False),
    "report_coordinator": _on_group("consume"),
    "commit_positions": _on_group("consume", audited=False),
    "list_groups": _FILTERED,
    "describe_group": _on_group("describe", audited=False),
    "reset_group": CallRow(
        (
            Ask("alter", "group", _field("group")),
            Ask("consume", "stream", _uuids, by="uuid"),  # a position may hold records
        )
    ),
    "delete_group": _on_group("delete"),
    # operators
    "cluster_status": _on_cluster("describe", audited=False),
    "cluster_controllers": _on_cluster("describe", audited=False),
    "change_controller": _on_cluster("admin"),
    "cluster_replicas": _on_cluster("describe", audited=False),
    "compact_replicas": _on_stream("alter"),
    "move_partition": _on_cluster("admin"),
    "transfer_leader": _on_cluster("admin"),
    "balance_leaders": _on_cluster("admin"),
    "elect_unclean": _on_stream("elect"),
    "remove_broker": _on_cluster("admin"),
    # access
    "whoami": _KNOWN,
    "table_credentials": _on_stream("consume"),
    "grant_access": _on_cluster("admin"),
    "revoke_access": _on_cluster("admin"),
    "list_access": _on_cluster("admin"),
    "who_can": _on_cluster("admin"),
    "create_token": _on_cluster("admin"),
    "revoke_token": _on_cluster("admin"),
    "list_tokens": _on_cluster("admin"),
    "set_quota": _on_cluster("admin"),
    "remove_quota": _on_cluster("admin"),
    "list_quotas": _on_cluster("admin"),
    "create_tenant": _on_cluster("admin"),
    "alter_tenant": _on_cluster("admin"),
    "delete_tenant": _on_cluster("admin"),
    "list_tenants": _FILTERED,
}

LIFTBRIDGE: Final[Mapping[str, CallRow]] = {
    "CreateStream": _row(
        ("create", "stream", _field("name")), ("attach", "subject", _field("subject"))
    ),
    "DeleteStream": _on_stream("delete"),
    "PauseStream": _on_stream("alter"),
    "SetStreamReadonly": _on_stream("alter"),
    "FetchMetadata": _FILTERED,
    "FetchPartitionMetadata": _on_stream("describe", audited=False),
    "Publish": _on_stream("publish"),
    "PublishAsync": _on_stream("publish"),
    "PublishToSubject": _row(  # the broker publishes on the inbox for the caller, as Publish's
        ("publish", "subject", _field("subject")), ("publish", "subject", _field("ackInbox"))
    ),
    "Subscribe": _of_reader(),
    "SetCursor": _of_reader(audited=False),  # of a group: as commit_positions
    "FetchCursor": _of_reader(audited=False),
    "JoinConsumerGroup": _row(
        ("consume", "group", _field("group")), ("consume", "stream", _field("streams"))
    ),
    "LeaveConsumerGroup": _on_group("consume"),
    "FetchConsumerGroupAssignments": _on_group("consume", audited=False),
    "ReportConsumerGroupCoordinator": _on_group("consume"),
    "Check": _OPEN,  # gRPC's health service
    "ServerReflectionInfo": _OPEN,  # schemas, the same for everybody
}

HTTP: Final[Mapping[str, CallRow]] = {
    "/healthz": _OPEN,
    "/readyz": _OPEN,
    "/metrics": _on_cluster("describe", audited=False),
}

DOORS: Final[Mapping[str, Mapping[str, CallRow]]] = {
    "flight": FLIGHT,
    "liftbridge": LIFTBRIDGE,
    "http": HTTP,
}
