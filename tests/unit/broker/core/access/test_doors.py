"""Every call of every door, for each kind of caller: allowed or refused, as the table here says."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final

import pytest

from broker.adapters.access.gate import Gate
from broker.core.access.doors import DOORS
from broker.core.metadata.state import LeaseState
from broker.errors import AccessDeniedError, UnauthenticatedError
from broker.model.access import (
    CLUSTER,
    ROLES,
    Caller,
    Grant,
    Kind,
    actions_of_role,
)
from broker.model.groups import PositionReset
from broker.model.ids import LeaseId, StreamUuid
from broker.model.stream import StreamConfig
from broker.model.tenant import Tenant
from broker.runtime.api.access import Access
from simkit.brokers.memory_broker import MemoryBroker

# What a request names: a stream, its subject, a group and a lease, all of the tenant "mine".
VALUES: Final[dict[str, Any]] = {
    "name": "mine-a",
    "names": ["mine-a"],
    "stream": "mine-a",
    "subject": "mine.a",
    "config": {"subject": "mine.a"},
    "group": "mine-g",
    "streams": ["mine-a"],
    "lease_id": "lease-1",
}
EVERYBODY: Final = frozenset({"anonymous", "wrong tenant", "reader", "writer", "admin"})
KNOWN: Final = EVERYBODY - {"anonymous"}
READERS: Final = frozenset({"reader", "admin"})
WRITERS: Final = frozenset({"writer", "admin"})
DESCRIBERS: Final = frozenset({"reader", "writer", "admin"})
ADMIN: Final = frozenset({"admin"})

MAY: Final[dict[str, dict[str, frozenset[str]]]] = {
    "flight": {
        "do_put": WRITERS,
        "do_get": READERS,
        "do_exchange": KNOWN,
        "list_flights": KNOWN,
        "get_flight_info": DESCRIBERS,
        "get_schema": EVERYBODY,
        "list_actions": EVERYBODY,
        "poll_flight_info": EVERYBODY,
        "create_stream": ADMIN,
        "describe_stream": DESCRIBERS,
        "brokers": KNOWN,
        "locate": DESCRIBERS,
        "list_streams": KNOWN,
        "alter_stream": ADMIN,
        "purge_partition": ADMIN,
        "rotate_key": ADMIN,
        "pause_stream": ADMIN,
        "resume_stream": ADMIN,
        "set_stream_readonly": ADMIN,
        "delete_stream": ADMIN,
        "stream_remains": ADMIN,
        "take_lease": READERS,
        "renew_lease": READERS,
        "drop_lease": READERS,
        "list_leases": DESCRIBERS,
        "cut": READERS,
        "check_cut": READERS,
        "high_watermarks": DESCRIBERS,
        "tier_status": DESCRIBERS,
        "tier_flush": ADMIN,
        "join_group": READERS,
        "leave_group": READERS,
        "group_heartbeat": READERS,
        "report_coordinator": READERS,
        "commit_positions": READERS,
        "list_groups": KNOWN,
        "describe_group": READERS,
        "reset_group": ADMIN,
        "delete_group": ADMIN,
        "cluster_status": ADMIN,
        "cluster_controllers": ADMIN,
        "change_controller": ADMIN,
        "cluster_replicas": ADMIN,
        "compact_replicas": ADMIN,
        "move_partition": ADMIN,
        "transfer_leader": ADMIN,
        "balance_leaders": ADMIN,
        "elect_unclean": ADMIN,
        "remove_broker": ADMIN,
        "whoami": KNOWN,
        "table_credentials": READERS,
        "grant_access": ADMIN,
        "revoke_access": ADMIN,
        "list_access": ADMIN,
        "who_can": ADMIN,
        "create_token": ADMIN,
        "revoke_token": ADMIN,
        "list_tokens": ADMIN,
        "set_quota": ADMIN,
        "remove_quota": ADMIN,
        "list_quotas": ADMIN,
        "create_tenant": ADMIN,
        "alter_tenant": ADMIN,
        "delete_tenant": ADMIN,
        "list_tenants": KNOWN,
    },
    "liftbridge": {
        "CreateStream": ADMIN,
        "DeleteStream": ADMIN,
        "PauseStream": ADMIN,
        "SetStreamReadonly": ADMIN,
        "FetchMetadata": KNOWN,
        "FetchPartitionMetadata": DESCRIBERS,
        "Publish": WRITERS,
        "PublishAsync": WRITERS,
        "PublishToSubject": WRITERS,
        "Subscribe": READERS,
        "SetCursor": READERS,
        "FetchCursor": READERS,
        "JoinConsumerGroup": READERS,
        "LeaveConsumerGroup": READERS,
        "FetchConsumerGroupAssignments": READERS,
        "ReportConsumerGroupCoordinator": READERS,
        "Check": EVERYBODY,
        "ServerReflectionInfo": EVERYBODY,
    },
    "http": {"/healthz": EVERYBODY, "/readyz": EVERYBODY, "/metrics": ADMIN},
}


def _grants(principal: str, role: str, stem: str) -> list[Grant]:
    patterns: dict[Kind, str] = {
        "stream": f"{stem}-*", "group": f"{stem}-*", "subject": f"{stem}.>", "cluster": CLUSTER,
    }  # fmt: skip
    return [
        Grant(
            principal=principal,
            kind=kind,
            pattern=patterns[kind],
            actions=actions_of_role(role, kind),
        )
        for kind in ROLES[role]
    ]


@pytest.fixture(scope="module")
def access() -> Access:
    """Give a broker with one stream and one lease, and a role for each kind of caller."""
    broker = MemoryBroker()
    stream = broker.streams.create("mine-a", StreamConfig(subject="mine.a"))
    metadata = broker.metadata
    metadata.note("mine-a", stream)
    metadata.note("theirs-a", broker.streams.create("theirs-a", StreamConfig(subject="theirs.a")))
    lease = LeaseState(stream_uuid=stream.uuid, owner="r", expires_us=9, floors=())
    metadata.state = replace(metadata.state, leases={LeaseId("lease-1"): lease})
    access = Access(metadata, broker.clock, enabled=True, namespace="default")
    access.grant(_grants("reader", "reader", "mine"))
    access.grant(_grants("writer", "writer", "mine"))
    access.grant(_grants("admin", "admin", "mine"))
    # The other tenant's owner, to whom careless grants would give all of this one.
    access.tenants.create(
        Tenant(name="mine", principals=("reader", "writer"), subjects=("mine.>",))
    )
    access.tenants.create(Tenant(name="theirs", owners=("wrong tenant",), subjects=("theirs.>",)))
    for role in ("owner", "operator", "reader", "writer"):
        access.grant(_grants("wrong tenant", role, "mine"))
    return access


@pytest.mark.parametrize("door", DOORS)
def test_every_call_has_its_line_here(door: str) -> None:
    """A call that is added to the table says here who may make it."""
    assert MAY[door].keys() == DOORS[door].keys()


@pytest.mark.parametrize(
    ("door", "call"), [(door, call) for door, calls in MAY.items() for call in calls]
)
def test_a_call_is_for_those_whom_the_table_names(access: Access, door: str, call: str) -> None:
    """And everybody else is refused by the right type."""
    gate = Gate(door, access)
    allowed = set()
    for who in sorted(EVERYBODY):
        caller = Caller(principal="" if who == "anonymous" else who)
        if who in MAY[door][call]:
            expected: Any = nullcontext()
        else:
            kind = UnauthenticatedError if who == "anonymous" else AccessDeniedError
            expected = pytest.raises(kind)
        with expected, gate.call(caller, call, VALUES):
            allowed.add(who)
    assert allowed == MAY[door][call]


def _refused(access: Access, who: str, call: str, values: dict[str, Any]) -> str:
    """Return the text of a refusal, without the id that the request names; empty: none."""
    try:
        Gate("flight", access).admit(Caller(principal=who), call, values)
    except AccessDeniedError as refused:
        ids = [
            values.get("lease_id", "no lease"),
            *(one.stream_uuid for one in values.get("positions", ())),
        ]
        text = refused.message
        for one in ids:
            text = text.replace(one, "ID")
        return text
    return ""


@pytest.mark.parametrize("call", ["renew_lease", "drop_lease"])
def test_a_lease_tells_nothing_to_those_who_may_read_nothing(access: Access, call: str) -> None:
    """One refusal for a lease that is there and one that is not; readers may ask for any lease."""
    known, unknown = {"lease_id": "lease-1"}, {"lease_id": "lease-2"}
    for who in ("writer", "stranger"):
        text = _refused(access, who, call, known)
        assert text == _refused(access, who, call, unknown) != ""
        assert "mine-a" not in text
    text = _refused(access, "wrong tenant", call, known)
    assert text
    assert "mine-a" not in text
    for who in ("reader", "admin"):
        assert _refused(access, who, call, known) == _refused(access, who, call, unknown) == ""


def test_a_group_is_set_to_positions_in_streams_that_its_owner_may_read(access: Access) -> None:
    """By uuid: one refusal for a stream of others and for one that is not there."""

    def values(*uuids: str) -> dict[str, Any]:
        positions = [
            PositionReset(stream_uuid=StreamUuid(one), partition=0, offset=0) for one in uuids
        ]
        return {"group": "mine-g", "positions": positions}

    mine, theirs = (access._metadata.state.streams[one].uuid for one in ("mine-a", "theirs-a"))
    access.grant([Grant(principal="keeper", kind="group", pattern="mine-*", actions=("alter",))])
    assert _refused(access, "keeper", "reset_group", values(mine)) != ""
    access.grant([Grant(principal="keeper", kind="stream", pattern="mine-*", actions=("consume",))])
    assert _refused(access, "keeper", "reset_group", values(mine)) == ""
    text = _refused(access, "keeper", "reset_group", values(theirs))
    assert text == _refused(access, "keeper", "reset_group", values("0-0")) != ""
    assert "theirs-a" not in text
    assert _refused(access, "keeper", "reset_group", values(mine, theirs)) == text
    for uuid in (mine, theirs, "0-0"):  # the call itself says which one is not there
        assert _refused(access, "admin", "reset_group", values(uuid)) == ""


READERS_CALLS_ON_GROUPS: Final = {
    "flight": {
        "join_group", "leave_group", "group_heartbeat", "report_coordinator", "commit_positions",
        "describe_group",
    },
    "liftbridge": {
        "Subscribe", "SetCursor", "FetchCursor", "JoinConsumerGroup", "LeaveConsumerGroup",
        "FetchConsumerGroupAssignments", "ReportConsumerGroupCoordinator",
    },
    "http": set[str](),
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_a_call_that_names_a_group_of_others_is_refused(access: Access, door: str) -> None:
    """Also on a stream of the caller's own. Without a group the stream alone is asked for."""
    gate, reader = Gate(door, access), Caller(principal="reader")
    refused = set()
    for call in DOORS[door]:
        if "reader" in MAY[door][call]:
            try:
                gate.admit(reader, call, {**VALUES, "group": "theirs-g"})
            except AccessDeniedError:
                refused.add(call)
    assert refused == READERS_CALLS_ON_GROUPS[door]


def test_a_subscription_or_a_cursor_without_a_group_needs_the_stream_only(access: Access) -> None:
    """As of a reader who is in no group."""
    for call in ("Subscribe", "SetCursor", "FetchCursor"):
        Gate("liftbridge", access).admit(Caller(principal="reader"), call, {"name": "mine-a"})


@pytest.mark.parametrize("door", DOORS)
def test_a_call_without_a_row_is_refused_to_administrators(access: Access, door: str) -> None:
    """A call that somebody forgot in the table lets nobody in."""
    with (
        pytest.raises(AccessDeniedError),
        Gate(door, access).call(Caller(principal="admin"), "added_yesterday", VALUES),
    ):
        pass


def test_every_stream_of_a_request_is_asked_for(access: Access) -> None:
    """One stream that the caller may not see refuses the whole call."""
    gate, reader = Gate("flight", access), Caller(principal="reader")
    values: dict[str, Any] = {"names": ["mine-a", "theirs-a"]}
    with (
        pytest.raises(AccessDeniedError, match="theirs-a"),
        gate.call(reader, "high_watermarks", values),
    ):
        pass
    values = {"group": "mine-g", "streams": ["mine-a", "theirs-a"]}
    with (
        pytest.raises(AccessDeniedError, match="theirs-a"),
        gate.call(reader, "join_group", values),
    ):
        pass


def test_a_list_shows_what_the_caller_may_describe(access: Access) -> None:
    """Names of other tenants are secrets, too."""
    gate = Gate("flight", access)
    names = ["mine-a", "theirs-a", "__audit"]
    assert gate.shown(Caller(principal="reader"), "stream", names) == ["mine-a"]
    assert gate.shown(Caller(principal="admin"), "stream", names) == names


@pytest.mark.parametrize(
    ("door", "call"), [("flight", "create_stream"), ("liftbridge", "CreateStream")]
)
def test_a_tenants_owner_creates_its_streams_on_its_subjects(
    access: Access, door: str, call: str
) -> None:
    """At each door; a name or a subject of others, or of nobody, is refused."""
    gate, owner = Gate(door, access), Caller(principal="wrong tenant")

    def create(name: str, subject: str) -> None:
        values = {"name": name, "subject": subject, "config": {"subject": subject}}
        with gate.call(owner, call, values):
            pass

    create("theirs-a", "theirs.a")
    for name, subject in (
        ("mine-b", "theirs.b"),
        ("b", "theirs.b"),
        ("theirs-b", "mine.b"),
        ("theirs-b", "b"),
        ("theirs-b", "*.b"),
        ("theirs-b", "_INBOX.b"),
    ):
        with pytest.raises(AccessDeniedError):
            create(name, subject)


def test_tenants_are_listed_to_those_who_are_of_them(access: Access) -> None:
    """All of them to an administrator, and none to who is of no tenant."""
    shown = {
        who: [one.name for one in access.tenants.shown(Caller(principal=who))]
        for who in ("admin", "reader", "wrong tenant", "of no tenant")
    }
    assert shown == {
        "admin": ["mine", "theirs"],
        "reader": ["mine"],
        "wrong tenant": ["theirs"],
        "of no tenant": [],
    }


def test_an_unknown_lease_is_no_way_to_a_stream(access: Access) -> None:
    """There is nothing to ask for: the broker answers that the lease is unknown."""
    with Gate("flight", access).call(Caller(principal="reader"), "drop_lease", {"lease_id": "x"}):
        pass
