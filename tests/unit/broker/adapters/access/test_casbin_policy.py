"""Policies in casbin's files, Liftbridge's own among them: what they allow at each door."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from broker.adapters.access.casbin_policy import CasbinFiles, CasbinPolicy
from broker.adapters.access.gate import Gate
from broker.adapters.flight.config import FlightServiceConfig
from broker.core.access.decision import ALLOWED, Denied
from broker.core.access.doors import DOORS
from broker.core.access.policy import PolicyJudge
from broker.errors import AccessDeniedError, InvalidConfigError, InvalidRequestError
from broker.model.access import Caller, Grant, Resource
from broker.model.stream import StreamConfig
from broker.process.watched_files import LOOK_MS
from broker.runtime.api.access import Access
from simkit.brokers.memory_broker import MemoryBroker

MODEL: Final = """
[request_definition]
r = sub, obj, act

[policy_definition]
p = sub, obj, act

[policy_effect]
e = some(where (p.eft == allow))

[matchers]
m = r.sub == p.sub && r.obj == p.obj && r.act == p.act
"""
EXACTLY: Final = "r.sub == p.sub && r.obj == p.obj && r.act == p.act"
ROLES_MODEL: Final = (
    MODEL.replace(EXACTLY, "g(r.sub, p.sub) && keyMatch(r.obj, p.obj) && r.act == p.act")
    + "\n[role_definition]\ng = _, _\n"
)
DENIES_ONLY: Final = MODEL.replace("some(where (p.eft == allow))", "!some(where (p.eft == deny))")
TWO_FIELDS: Final = MODEL.replace("r = sub, obj, act", "r = sub, obj")
# As Liftbridge's own: the common name of a certificate, a stream, a call of its API.
LIFTBRIDGE: Final = """\
p, client1, *, FetchMetadata
p, client1, bar, CreateStream
p, client1, foo, CreateStream
p, client1, foo, DeleteStream
p, client1, foo, Subscribe
p, client1, foo, PublishToSubject
p, client1, foo, Publish
p, client1, foo, SetStreamReadonly
p, client1, foo, SetCursor
p, client2, foo, PauseStream
p, client2, foo, FetchPartitionMetadata
p, client2, foo, FetchCursor
"""
FOO: Final = {"name": "foo", "subject": "foo", "streams": ["foo"]}
FIRST: Final = {
    "CreateStream", "DeleteStream", "Subscribe", "PublishToSubject", "Publish", "PublishAsync",
    "SetStreamReadonly", "SetCursor",
}  # fmt: skip
SECOND: Final = {"PauseStream", "FetchPartitionMetadata", "FetchCursor"}
# The list is filtered; health and schemas are for all.
EVERYWHERE: Final = {"FetchMetadata", "Check", "ServerReflectionInfo"}


class Heard:
    """An audit that keeps whom it hears of."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str, str]] = []

    def note(
        self, *, caller: Caller, door: str, call: str, resources: Sequence[str], result: str
    ) -> None:
        """Keep it."""
        self.notes.append((caller.principal, call, result))


class Site:
    """A broker whose policy is in files."""

    def __init__(self, folder: Path, model: str = MODEL, lines: str = LIFTBRIDGE) -> None:
        self.model, self.lines = folder / "model.conf", folder / "policy.csv"
        self.model.write_text(model)
        self.lines.write_text(lines)
        self.files = CasbinFiles(str(self.model), str(self.lines))
        self.broker = MemoryBroker()
        for name in ("foo", "bar", "__audit"):
            self.broker.metadata.note(name, self.broker.create(name, StreamConfig(subject=name)))
        self.access = Access(
            self.broker.metadata,
            self.broker.clock,
            enabled=True,
            namespace="default",
            admins=["root"],
            policy=self.files.policy,
        )
        self.heard = Heard()

    def may(self, principal: str, door: str, call: str, values: dict[str, Any]) -> bool:
        """Tell whether somebody may make a call."""
        caller = Caller(principal=principal, via="certificate")
        try:
            Gate(door, self.access, self.heard).admit(caller, call, values)
        except AccessDeniedError:
            return False
        return True

    def look(self) -> list[str]:
        """Look at the files; return the events."""
        with capture_logs() as lines:
            self.files.look(at_once=True)
        return [str(one["event"]) for one in lines]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Give a broker with Liftbridge's kind of policy."""
    return Site(tmp_path)


@pytest.mark.parametrize(
    ("principal", "allowed"),
    [("client1", FIRST | EVERYWHERE), ("client2", SECOND | EVERYWHERE), ("client3", EVERYWHERE)],
)
def test_each_call_of_liftbridge_asks_what_liftbridge_asks(
    site: Site, principal: str, allowed: set[str]
) -> None:
    """Its files need no change: subject, stream, name of the call. Groups need lines, too."""

    def calls_on(stream: str) -> set[str]:
        values = {"name": stream, "subject": stream, "streams": [stream]}
        with_group = {**values, "group": "g"}
        return {
            one
            for one in DOORS["liftbridge"]
            if site.may(principal, "liftbridge", one, with_group if "Group" in one else values)
        }

    assert calls_on("foo") == allowed
    beyond = {"CreateStream"} if principal == "client1" else set()
    assert calls_on("bar") == beyond | EVERYWHERE
    assert (principal, "DeleteStream", "AccessDeniedError") in site.heard.notes


def test_who_may_join_a_group_may_read_and_move_its_positions(tmp_path: Path) -> None:
    """The line of JoinConsumerGroup is that of the group's cursor and of its readers, too."""
    site = Site(tmp_path)
    for call in ("Subscribe", "SetCursor"):
        assert site.may("client1", "liftbridge", call, FOO)
        assert not site.may("client1", "liftbridge", call, {**FOO, "group": "g"})
    site.lines.write_text(LIFTBRIDGE + "p, client1, g, JoinConsumerGroup\n")
    assert site.look() == ["policy_read"]
    for call in ("JoinConsumerGroup", "Subscribe", "SetCursor"):
        assert site.may("client1", "liftbridge", call, {**FOO, "group": "g"}), call
    assert not site.may("client1", "liftbridge", "FetchCursor", {**FOO, "group": "g"})


@pytest.mark.parametrize(
    ("call", "values", "first", "second"),
    [
        ("do_put", FOO, True, False),
        ("do_get", FOO, True, False),
        ("describe_stream", FOO, True, True),
        ("create_stream", {"name": "foo", "config": {"subject": "x"}}, True, False),
        ("create_stream", {"name": "foo", "config": {"subject": ">"}}, False, False),
        ("delete_stream", FOO, True, False),
        ("pause_stream", FOO, False, False),  # to alter is more than PauseStream
        ("purge_partition", FOO, False, False),
        ("cluster_status", {}, False, False),
        ("grant_access", {}, False, False),
    ],
)
def test_the_same_files_decide_at_flight(
    site: Site, call: str, values: dict[str, Any], first: bool, second: bool
) -> None:
    """By the call of Liftbridge that does the same; what it has no word for is refused."""
    assert site.may("client1", "flight", call, values) is first
    assert site.may("client2", "flight", call, values) is second
    assert site.may("root", "flight", call, values)


def test_lists_have_what_may_be_described(site: Site) -> None:
    """``FetchMetadata`` on ``*`` is the whole list; else the streams that one may use."""
    gate, names = Gate("flight", site.access), ["foo", "bar"]
    for principal, shown in (("client1", names), ("client2", ["foo"]), ("client3", [])):
        caller = Caller(principal=principal, via="certificate")
        assert gate.shown(caller, "stream", names) == shown


def test_headwaters_own_words_and_roles(tmp_path: Path) -> None:
    """``kind:name`` and an action, for what Liftbridge has no call for; by role and pattern."""
    lines = """\
# tenants
g, ann, shop
g, olga, operators
p, shop, stream:shop-*, publish
p, shop, group:shop-*, consume
p, operators, cluster:cluster, admin
"""
    site = Site(tmp_path, ROLES_MODEL, lines)
    assert site.may("ann", "flight", "do_put", {"name": "shop-in"})
    assert site.may("ann", "liftbridge", "Publish", {"name": "shop-in"})
    assert not site.may("ann", "flight", "do_put", {"name": "hr"})
    assert not site.may("ann", "flight", "do_get", {"name": "shop-in"})
    assert site.may("ann", "flight", "group_heartbeat", {"group": "shop-g"})
    assert site.may("olga", "flight", "elect_unclean", {"name": "hr"})
    told = site.access.who_can("publish", "stream", "shop-in")
    assert told == ["ann", "olga", "operators", "root", "shop"]


def test_rules_that_no_policy_changes(tmp_path: Path) -> None:
    """Nobody without a proof, nobody into the audit, no subject of others' requests."""
    anything = MODEL.replace(EXACTLY, "keyMatch(r.sub, p.sub) && r.act != 'admin'")
    site = Site(tmp_path, anything, "p, ann*, x, x\n")
    judge = PolicyJudge(site.files.policy())
    assert judge.decide("ann", "publish", Resource("stream", "s")) is ALLOWED
    for principal, action, resource in (
        ("", "publish", Resource("stream", "s")),
        ("ann", "publish", Resource("stream", "__audit")),
        ("ann", "attach", Resource("subject", ">")),
    ):
        found = judge.decide(principal, action, resource)  # type: ignore[arg-type]
        assert isinstance(found, Denied)


def test_changed_files_count_at_once_and_broken_ones_not(site: Site) -> None:
    """The policy from before stays; an open call asks again after a change, and only then."""
    caller = Caller(principal="client1", via="certificate")
    check = Gate("flight", site.access, site.heard).admit_watched(caller, "do_get", FOO)
    before = site.access.version
    site.lines.write_text("p, client1\n")
    assert site.look() == ["policy_kept"]
    site.lines.unlink()
    assert site.look() == ["policy_kept"]
    assert site.access.version is before
    check()
    site.lines.write_text(LIFTBRIDGE.replace("foo, Subscribe", "foo, Unsubscribed"))
    assert site.look() == ["policy_read"]
    with pytest.raises(AccessDeniedError, match="'client1' consume stream 'foo'"):
        check()
    assert site.heard.notes[-1] == ("client1", "do_get", "AccessDeniedError")
    assert 2 * LOOK_MS + FlightServiceConfig().idle_check_ms <= 1_000, "a revocation in a second"


def test_who_may_subscribe_to_a_stream_may_ask_for_any_lease(site: Site) -> None:
    """An unknown lease has no stream to ask for."""
    for principal, may in (("client1", True), ("client2", False), ("root", True)):
        assert site.may(principal, "flight", "drop_lease", {"lease_id": "x"}) is may


def test_grants_have_no_say(site: Site) -> None:
    """They are refused, so that nobody believes in them."""
    one = Grant(principal="ann", kind="stream", pattern="s", actions=("publish",))
    for act in (
        lambda: site.access.grant([one]),
        lambda: site.access.revoke([one]),
        site.access.grants,
    ):
        with pytest.raises(InvalidRequestError, match="casbin_policy_file"):
            act()


@pytest.mark.parametrize(
    ("model", "lines", "told"),
    [
        (MODEL, "", "no line"),
        (MODEL, "# only\n", "no line"),
        (MODEL, "p, a, b\n", "3 fields"),
        (MODEL, "p, a, , c\n", "3 fields"),
        (MODEL, "p, a, b, c, d\n", "3 fields"),
        (MODEL, "g, a, b\n", "not define 'g'"),
        (MODEL, "q, a, b, c\n", "not define 'q'"),
        (MODEL, 'p, "a", b, c\n', "quotes"),
        (MODEL, "p, a, b), c\n", "refuses"),
        (MODEL, "p, a, b, c\n" * 1_001, "more than 1000"),
        (DENIES_ONLY, LIFTBRIDGE, "denies"),
        (TWO_FIELDS, LIFTBRIDGE, "subject, object and action"),
        (MODEL.replace("[matchers]", "[else]"), LIFTBRIDGE, "matchers"),
        (MODEL.replace("r.sub == p.sub", "unknown(r.sub)"), LIFTBRIDGE, "refuses"),
        ("", LIFTBRIDGE, "needs"),
        ("x", LIFTBRIDGE, "refuses"),
    ],
    ids=itertools.count(),
)
def test_files_that_would_be_misread_are_refused(model: str, lines: str, told: str) -> None:
    """Casbin would skip a line that it does not know, or fail at the first question."""
    with pytest.raises(InvalidConfigError, match=told):
        CasbinPolicy(model, lines)


DENY_MODEL: Final = MODEL.replace("p = sub, obj, act", "p = sub, obj, act, eft").replace(
    "some(where (p.eft == allow))",
    "some(where (p.eft == allow)) && !some(where (p.eft == deny))",
)


@pytest.mark.parametrize(
    "matcher",
    [
        "True",
        "1 == 1",
        "'a' == 'a'",
        "r.sub != p.sub",
        "r.obj == p.obj && r.act == p.act",
        "r.act == p.act",
        "r.obj == p.obj",
        "r.sub != ''",
        f"({EXACTLY}) || r.act == 'Subscribe' || True",
    ],
)
@pytest.mark.parametrize("model", [MODEL, DENY_MODEL], ids=["allow", "deny"])
def test_a_model_that_allows_those_whom_no_line_names_is_refused(model: str, matcher: str) -> None:
    """On things and acts that lines name, or on any."""
    line = "p, alice, orders, Publish" + (", allow" if model is DENY_MODEL else "")
    assert CasbinPolicy(model, line).allows("alice", "orders", "Publish")
    with pytest.raises(InvalidConfigError, match="everybody"):
        CasbinPolicy(model.replace(EXACTLY, matcher), line)


@pytest.mark.parametrize(
    "effect",
    [
        "!some(where (p.eft == deny))",
        "!some(where (p.eft==deny))",
        "! some(where (p.eft == deny))",
        "priority(p.eft) || allow",
        "some(where (p.eft == allow)) || !some(where (p.eft == deny))",
    ],
)
def test_an_effect_that_allows_without_a_line_is_refused(effect: str) -> None:
    """In each way of writing it, and those that casbin does not know."""
    model = MODEL.replace("some(where (p.eft == allow))", effect)
    with pytest.raises(InvalidConfigError):
        CasbinPolicy(model, LIFTBRIDGE)


def test_a_line_may_say_that_everybody_may() -> None:
    """Then the line allows it, and not the model."""
    model = MODEL.replace("r.sub == p.sub", "keyMatch(r.sub, p.sub)")
    policy = CasbinPolicy(model, "p, *, public, Subscribe\n")
    assert policy.allows("mallory", "public", "Subscribe")
    assert not policy.allows("mallory", "orders", "Subscribe")
    for field in ("obj", "act"):
        model = model.replace(f"r.{field} == p.{field}", f"keyMatch(r.{field}, p.{field})")
    with pytest.raises(InvalidConfigError, match="everything"):
        CasbinPolicy(model, "p, *, *, *\n")


def test_expressions_in_lines_are_taken() -> None:
    """A model that evaluates a field of its lines can be probed, too."""
    model = MODEL.replace("p = sub,", "p = sub_rule,").replace("r.sub == p.sub", "eval(p.sub_rule)")
    policy = CasbinPolicy(model, "p, r.sub == 'ann', orders, Publish\n")
    assert policy.allows("ann", "orders", "Publish")
    assert not policy.allows("bob", "orders", "Publish")


@pytest.mark.parametrize("effect", ["denied", "Deny", "allowed", "ALLOW", "1"])
def test_an_effect_that_casbin_would_ignore_is_refused(effect: str) -> None:
    """A denial with a typing error would deny nothing."""
    lines = "p, alice, orders, Publish, allow\np, alice, orders, Publish, {}\n"
    assert not CasbinPolicy(DENY_MODEL, lines.format("deny")).allows("alice", "orders", "Publish")
    with pytest.raises(InvalidConfigError, match="allow or deny"):
        CasbinPolicy(DENY_MODEL, lines.format(effect))


def test_a_denial_that_the_model_does_not_look_at_is_refused() -> None:
    """It would deny nothing, either."""
    model = MODEL.replace("p = sub, obj, act", "p = sub, obj, act, eft")
    assert CasbinPolicy(model, "p, a, b, c, allow\n").allows("a", "b", "c")
    with pytest.raises(InvalidConfigError, match="no denial"):
        CasbinPolicy(model, "p, a, b, c, allow\np, a, b, c, deny\n")


def test_a_matcher_that_fails_allows_nothing() -> None:
    """The log says why."""
    matcher = "1 / (r.act != 'Publish') > 0 && r.sub == p.sub"  # has an answer at the start
    policy = CasbinPolicy(MODEL.replace("r.sub == p.sub", matcher), LIFTBRIDGE)
    with capture_logs() as lines:
        assert not policy.allows("ann", "foo", "Publish")
    assert [one["event"] for one in lines] == ["policy_matcher_failed"]


def test_a_remembered_decision_takes_microseconds(site: Site) -> None:
    """The library is asked once for each question and state of the files.

    That takes half a millisecond here; on a slow machine both take longer.
    """
    policy = site.files.policy()
    asked_us = min(_timed(PolicyJudge(policy), count=1) for _ in range(5))
    judge = PolicyJudge(policy)
    best_us = min(_timed(judge, count=1_000) for _ in range(5))
    assert best_us < asked_us / 100


def _timed(judge: PolicyJudge, *, count: int) -> float:
    resource = Resource("stream", "foo", "default")
    began_s = time.perf_counter()
    for _ in range(count):
        judge.decide("client1", "publish", resource, "do_put")
    return (time.perf_counter() - began_s) * 1_000_000 / count
