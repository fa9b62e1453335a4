"""The bodies of actions: every field is known, typed and bounded."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from broker.codec.flight.actions import ACTIONS, BODY_BYTES_MAX, decode_body
from broker.codec.flight.protocol import encode_body
from broker.errors import InvalidRequestError
from broker.model.access import Action, Grant
from broker.model.groups import PositionCommit, PositionReset
from broker.model.ids import StreamUuid
from broker.model.quota import LIMITS
from broker.model.tenant import COUNTS, SHARES

UUID = StreamUuid("00000000-0000-0000-0000-000000000001")
WHO = {"group": "g", "member": "m", "instance": "i"}
COMMITTED = PositionCommit(stream_uuid=UUID, partition=1, epoch=3, number=2, offset=7)
GRANT = {
    "principal": "ann",
    "kind": "stream",
    "pattern": "a*",
    "actions": ["consume", "publish"],
    "namespace": "n",
}
GOOD: dict[str, dict[str, Any]] = {
    "create_stream": {"name": "s", "config": {"subject": "s"}},
    "describe_stream": {"name": "s", "positions": False},
    "brokers": {},
    "locate": {"name": "s"},
    "list_streams": {},
    "rotate_key": {"name": "s", "version": 1},
    "alter_stream": {
        "name": "s",
        "stream_uuid": None,
        "changes": {"puback": True},
        "dry_run": True,
    },
    "purge_partition": {
        "name": "s",
        "stream_uuid": None,
        "partition": 0,
        "before": 7,
        "before_us": None,
        "operator": "me",
    },
    "pause_stream": {"name": "s", "stream_uuid": None, "partitions": [0, 7], "resume_all": True},
    "resume_stream": {"name": "s", "stream_uuid": None, "partitions": []},
    "set_stream_readonly": {
        "name": "s",
        "stream_uuid": None,
        "partitions": [1],
        "readonly": False,
    },
    "delete_stream": {"name": "s", "stream_uuid": None},
    "stream_remains": {"name": "s", "stream_uuid": UUID},
    "take_lease": {"name": "s", "owner": "me", "ttl_ms": 1_000},
    "renew_lease": {"lease_id": "l", "ttl_ms": 1_000},
    "drop_lease": {"lease_id": "l"},
    "list_leases": {"name": "s"},
    "cut": {"name": "s", "owner": "me", "ttl_ms": 1_000},
    "check_cut": {
        "name": "s",
        "stream_uuid": "00000000-0000-0000-0000-000000000001",
        "positions": [("a" * 32, 7), (None, 0)],
        "believe_forgotten": True,
    },
    "tier_status": {"name": "s"},
    "high_watermarks": {"names": ["s", "t"]},
    "tier_flush": {"name": "s", "timeout_ms": 1_000},
    "join_group": {
        **WHO,
        "streams": ["s"],
        "session_ms": 10_000,
        "static": True,
        "owner": "me",
        "membership": 1,
    },
    "leave_group": {**WHO, "membership": 1},
    "group_heartbeat": {**WHO, "epoch": 7},
    "report_coordinator": {**WHO, "coordinator": "a"},
    "commit_positions": {**WHO, "positions": [asdict(COMMITTED)]},
    "list_groups": {},
    "describe_group": {"group": "g"},
    "reset_group": {
        "group": "g",
        "positions": [{"stream_uuid": UUID, "partition": 0, "offset": 7}],
    },
    "delete_group": {"group": "g"},
    "whoami": {},
    "table_credentials": {"name": "s"},
    "grant_access": {"grants": [GRANT]},
    "revoke_access": {"grants": [GRANT]},
    "list_access": {},
    "who_can": {"action": "publish", "kind": "stream", "name": "s"},
    "create_token": {
        "token_id": "0" * 16,
        "digest": "0" * 64,
        "principal": "ann",
        "expires_us": 7,
        "note": "ann's laptop",
    },
    "revoke_token": {"token_id": "0" * 16},
    "list_tokens": {},
    "set_quota": {
        "principal": "shop*",
        "publish_bytes_per_s": 4096,
        "read_bytes_per_s": 0,
        "requests_per_s": 7,
        "open_calls": 0,
    },
    "remove_quota": {"principal": "*"},
    "list_quotas": {},
    "create_tenant": {"name": "t", "owners": ["a*"], "principals": [], "subjects": ["t.>"]},
    "alter_tenant": {"name": "t", "changes": {"owners": [], "streams_max": 7}},
    "delete_tenant": {"name": "t"},
    "list_tenants": {},
    "cluster_status": {"confirm_ms": 500},
    "cluster_controllers": {},
    "change_controller": {"broker": "a", "votes": True},
    "cluster_replicas": {},
    "compact_replicas": {"name": "s", "partitions": [0, 7], "ticket": "t"},
    "move_partition": {"name": "s", "partition": 0, "target": ["a", "b"]},
    "transfer_leader": {"name": "s", "partition": 0, "to": "a"},
    "balance_leaders": {},
    "elect_unclean": {
        "name": "s",
        "partition": 0,
        "broker": "a",
        "partition_epoch": 7,
        "known_end": 9,
        "operator": "me",
        "accept_data_loss": True,
    },
    "remove_broker": {"broker": "a"},
}
OPTIONAL = {"cluster_status"}  # actions that need no field


def test_every_action_has_an_example_here() -> None:
    """A new action comes with its test."""
    assert GOOD.keys() == ACTIONS.keys()


@pytest.mark.parametrize("action", GOOD)
def test_a_body_comes_back_as_it_was(action: str) -> None:
    """The server's method gets the values that the client encoded."""
    expected = {**GOOD[action]}
    if action == "commit_positions":
        expected["positions"] = [COMMITTED]
    if action == "reset_group":
        expected["positions"] = [PositionReset(stream_uuid=UUID, partition=0, offset=7)]
    if action in ("grant_access", "revoke_access"):
        actions: tuple[Action, ...] = ("consume", "publish")
        expected["grants"] = [
            Grant(principal="ann", kind="stream", pattern="a*", actions=actions, namespace="n")
        ]
    if action == "create_tenant":
        numbers = dict.fromkeys((*LIMITS, *COUNTS, *SHARES), 0)
        expected |= {
            "owners": ("a*",),
            "principals": (),
            "subjects": ("t.>",),
            **numbers,
            "wrapping_key": "",
        }
    if action == "alter_tenant":
        expected["changes"] = {"owners": (), "streams_max": 7}
    assert decode_body(action, encode_body(GOOD[action])) == expected


@pytest.mark.parametrize(
    "action", [action for action, body in GOOD.items() if body and action not in OPTIONAL]
)
def test_a_missing_field_is_refused_by_name(action: str) -> None:
    """A body without a field that has no default is refused."""
    required = next(iter(GOOD[action]))
    body = {name: value for name, value in GOOD[action].items() if name != required}
    with pytest.raises(InvalidRequestError) as caught:
        decode_body(action, json.dumps(body).encode())
    assert caught.value.field == required


@pytest.mark.parametrize("action", GOOD)
def test_an_unknown_field_is_refused_by_name(action: str) -> None:
    """A misspelt field is never ignored."""
    body = {**GOOD[action], "tttl_ms": 1}
    with pytest.raises(InvalidRequestError) as caught:
        decode_body(action, json.dumps(body).encode())
    assert caught.value.field == "tttl_ms"


@pytest.mark.parametrize(
    ("action", "change"),
    [
        ("describe_stream", {"name": ".."}),
        ("describe_stream", {"name": 1}),
        ("describe_stream", {"positions": 1}),
        ("create_stream", {"config": []}),
        ("take_lease", {"owner": ""}),
        ("take_lease", {"owner": "x" * 257}),
        ("take_lease", {"owner": "a\nb"}),
        ("take_lease", {"owner": "\ud800"}),
        ("take_lease", {"ttl_ms": 99}),
        ("take_lease", {"ttl_ms": 10**12}),
        ("take_lease", {"ttl_ms": 1e3}),
        ("renew_lease", {"lease_id": None}),
        ("tier_flush", {"timeout_ms": 0}),
        ("high_watermarks", {"names": []}),
        ("high_watermarks", {"names": "s"}),
        ("high_watermarks", {"names": ["s", 5]}),
        ("high_watermarks", {"names": ["s"] * 1001}),
        ("delete_stream", {"stream_uuid": "../.."}),
        ("cluster_status", {"confirm_ms": 0}),
        ("move_partition", {"partition": -1}),
        ("move_partition", {"partition": "0"}),
        ("move_partition", {"target": []}),
        ("move_partition", {"target": ["a", ".."]}),
        ("move_partition", {"target": ["a"] * 8}),
        ("transfer_leader", {"to": 5}),
        ("elect_unclean", {"partition_epoch": -1}),
        ("elect_unclean", {"known_end": 1 << 63}),
        ("elect_unclean", {"operator": ""}),
        ("elect_unclean", {"accept_data_loss": "yes"}),
        ("remove_broker", {"broker": "a/b"}),
        ("change_controller", {"broker": "a/b"}),
        ("change_controller", {"votes": 1}),
        ("compact_replicas", {"ticket": ""}),
        ("compact_replicas", {"ticket": "t" * 65}),
        ("compact_replicas", {"partitions": [-1]}),
        ("check_cut", {"believe_forgotten": "yes"}),
        ("alter_stream", {"dry_run": 0}),
        ("join_group", {"group": ""}),
        ("join_group", {"streams": []}),
        ("join_group", {"session_ms": 999}),
        ("join_group", {"static": 1}),
        ("join_group", {"owner": "a\nb"}),
        ("join_group", {"membership": -1}),
        ("leave_group", {"membership": True}),
        ("group_heartbeat", {"epoch": -1}),
        ("commit_positions", {"positions": []}),
        ("commit_positions", {"positions": [7]}),
        ("commit_positions", {"positions": [{}] * 1001}),
        ("reset_group", {"positions": "all"}),
        ("describe_group", {"group": 7}),
        ("pause_stream", {"partitions": 0}),
        ("pause_stream", {"partitions": [-1]}),
        ("pause_stream", {"partitions": [0] * 1025}),
        ("pause_stream", {"resume_all": 1}),
        ("resume_stream", {"partitions": ["0"]}),
        ("set_stream_readonly", {"readonly": None}),
        ("grant_access", {"grants": []}),
        ("grant_access", {"grants": [GRANT] * 65}),
        ("who_can", {"action": "fly"}),
        ("who_can", {"kind": "table"}),
        ("create_token", {"principal": ""}),
        ("create_token", {"expires_us": -1}),
        ("create_token", {"note": "a\nb"}),
        ("set_quota", {"publish_bytes_per_s": -1}),
        ("set_quota", {"open_calls": True}),
        ("create_tenant", {"owners": "ann"}),
        ("create_tenant", {"subjects": [7]}),
        ("create_tenant", {"principals": ["a"] * 17}),
        ("alter_tenant", {"changes": {}}),
        ("create_tenant", {"open_calls": -1}),
        ("create_tenant", {"streams_max": "7"}),
        ("create_tenant", {"wrapping_key": "a\nb"}),
    ],
)
def test_a_bad_value_is_refused_by_name(action: str, change: dict[str, Any]) -> None:
    """Bounds and types are checked before anything is done; the message names the field, too."""
    with pytest.raises(InvalidRequestError) as caught:
        decode_body(action, json.dumps({**GOOD[action], **change}).encode())
    assert caught.value.field == next(iter(change))
    assert str(caught.value).startswith(caught.value.field)


def test_an_empty_body_is_an_empty_object() -> None:
    """Command line tools send no body where no field is needed."""
    assert decode_body("list_streams", b"") == {}


@pytest.mark.parametrize("action", ["", "close", "x" * 10_000, "__class__"])
def test_an_unknown_action_is_refused_with_the_known_ones(action: str) -> None:
    """The error lists what there is."""
    with pytest.raises(InvalidRequestError, match="create_stream"):
        decode_body(action, b"{}")


def test_a_body_beyond_its_bound_is_not_parsed() -> None:
    """The length is checked first."""
    with pytest.raises(InvalidRequestError, match="exceeds"):
        decode_body("list_streams", b"[" * (BODY_BYTES_MAX + 1))


@pytest.mark.parametrize(
    "change",
    [
        {"principal": "a\nb"},
        {"principal": " ann"},
        {"kind": "table"},
        {"pattern": "*a"},
        {"pattern": "a*b*"},
        {"actions": []},
        {"actions": ["admin"]},
        {"actions": ["fly"]},
        {"namespace": "a\tb"},
    ],
)
def test_a_bad_grant_is_refused(change: dict[str, Any]) -> None:
    """A name that nobody can have, or an action that cannot be done to the kind of resource."""
    with pytest.raises(InvalidRequestError):
        decode_body("grant_access", json.dumps({"grants": [{**GRANT, **change}]}).encode())
