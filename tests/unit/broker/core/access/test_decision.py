"""The decision core: what a grant reaches, and what nothing reaches."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.core.access.decision import ALLOWED, Denied, Judge, reaches
from broker.core.access.policy import PolicyJudge
from broker.model.access import (
    ACTIONS_OF,
    CLUSTER,
    EVERYBODY,
    AccessState,
    Action,
    Grant,
    Kind,
    Resource,
    check_grant,
)
from broker.model.subjects import covers, replication_subjects
from cases import seeds


def grant(pattern: str, *actions: Action, who: str = "ann", **values: Any) -> Grant:
    """Return a grant on streams, unless told otherwise."""
    return Grant(
        **{
            "principal": who,
            "kind": "stream",
            "pattern": pattern,
            "actions": tuple(sorted(actions)),
            **values,
        }
    )


def judge(*grants: Grant, admins: tuple[str, ...] = ()) -> Judge:
    """Return a judge by these grants."""
    return Judge(AccessState(grants=grants), admins)


def stream(name: str, namespace: str = "") -> Resource:
    """Return a stream as a resource."""
    return Resource("stream", name, namespace)


def test_nothing_is_allowed_by_default() -> None:
    """No state, no grants, another principal."""
    assert isinstance(Judge(None).decide("ann", "consume", stream("a")), Denied)
    assert isinstance(judge().decide("ann", "consume", stream("a")), Denied)
    found = judge(grant("a", "consume")).decide("bob", "consume", stream("a"))
    assert found == Denied("no grant lets 'bob' consume stream 'a'")


def test_nobody_is_allowed_nothing_even_if_named() -> None:
    """A caller without a principal is refused, whatever the configuration and the grants say."""
    careless = judge(grant("*", "consume", who=EVERYBODY), admins=("",))
    assert isinstance(careless.decide("", "consume", stream("a")), Denied)


@pytest.mark.parametrize(
    ("pattern", "name", "reached"),
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("ab", "a", False),
        ("a*", "a", True),
        ("a*", "ab", True),
        ("a*", "b", False),
        ("*", "anything", True),
        ("*", "__audit", False),
        ("_*", "__audit", False),
        ("__*", "__audit", True),
        ("__audit", "__audit", True),
    ],
)
def test_a_pattern_is_a_name_or_its_beginning(pattern: str, name: str, reached: bool) -> None:
    """And the cluster's own streams are reached by patterns that begin as they do."""
    assert reaches(grant(pattern, "consume"), stream(name)) is reached


def test_a_grant_of_a_namespace_ends_there() -> None:
    """Without a namespace it is about all of them."""
    inside, outside = stream("a", "one"), stream("a", "two")
    assert reaches(grant("a", "consume", namespace="one"), inside)
    assert not reaches(grant("a", "consume", namespace="one"), outside)
    assert reaches(grant("a", "consume"), outside)


def test_each_action_includes_to_describe_and_nothing_more() -> None:
    """Who may publish needs the stream's partitions; who may describe reads no record."""
    one = judge(grant("a", "publish"))
    assert one.decide("ann", "describe", stream("a")) is ALLOWED
    assert isinstance(one.decide("ann", "consume", stream("a")), Denied)
    other = judge(grant("a", "describe"))
    assert isinstance(other.decide("ann", "publish", stream("a")), Denied)


def test_a_grant_is_about_its_kind_of_resource() -> None:
    """A group and a stream may have the same name."""
    one = judge(grant("a", "consume"))
    assert isinstance(one.decide("ann", "consume", Resource("group", "a")), Denied)


def test_an_administrator_may_do_everything() -> None:
    """By a grant on the cluster, or by the configuration; to describe the cluster is not enough."""
    granted = judge(grant(CLUSTER, "admin", kind="cluster"))
    assert granted.decide("ann", "elect", stream("__audit")) is ALLOWED
    assert judge(admins=("ann",)).decide("ann", "delete", stream("a")) is ALLOWED
    sees = judge(grant(CLUSTER, "describe", kind="cluster"))
    assert isinstance(sees.decide("ann", "delete", stream("a")), Denied)
    assert isinstance(sees.decide("ann", "admin", Resource("cluster", CLUSTER)), Denied)


def test_nobody_publishes_on_the_audit() -> None:
    """Brokers write it; an administrator may read it, and so may who was granted that."""
    one = judge(grant("__audit", "publish", "consume"), admins=("root",))
    for who in ("ann", "root"):
        assert isinstance(one.decide(who, "publish", stream("__audit")), Denied)
        assert one.decide(who, "consume", stream("__audit")) is ALLOWED


def test_a_grant_to_everybody_is_one_to_each() -> None:
    """Each who has proved who they are."""
    one = judge(grant("a", "consume", who=EVERYBODY))
    assert one.decide("bob", "consume", stream("a")) is ALLOWED
    assert one.who_can("consume", stream("a")) == [EVERYBODY]


@pytest.mark.parametrize(
    "subject", [">", "*", "*.a", "_INBOX.x", "$SYS.>", "$JS.API.x", "$SRV.PING"]
)
def test_a_shared_subject_is_for_administrators(subject: str) -> None:
    """Even a grant on every subject does not reach other people's requests."""
    wide = grant(">", "attach", kind="subject")
    one = judge(wide, admins=("root",))
    assert isinstance(one.decide("ann", "attach", Resource("subject", subject)), Denied)
    assert one.decide("root", "attach", Resource("subject", subject)) is ALLOWED
    assert one.decide("ann", "attach", Resource("subject", "orders")) is ALLOWED


class _AllowsNothing:
    """A policy without a line. Who may create a stream would choose its subject, all the same."""

    def allows(self, principal: str, resource: str, act: str) -> bool:
        del principal, resource, act
        return False

    def principals(self) -> frozenset[str]:
        return frozenset()


@pytest.mark.parametrize(
    ("subject", "refused"),
    [
        ("prod.orders.0.replicate", True),
        ("prod.orders.0.offset", True),
        ("prod.notify.b1", True),
        ("prod.notify", True),  # its second partition hears prod.notify.1
        ("prod.>", True),
        ("prod.*.0.*", True),
        ("prod.orders.0", False),
        ("prod.orders", False),
        ("test.orders.0.replicate", False),
    ],
)
def test_the_brokers_own_subjects_are_for_administrators(subject: str, refused: bool) -> None:
    """Where brokers replicate over NATS; by grants and by a policy, which lets attach anywhere."""
    grants = AccessState(grants=(grant(">", "attach", kind="subject"),))
    own = replication_subjects("prod")
    for one in (
        Judge(grants, ("root",), brokers_subjects=own),
        PolicyJudge(_AllowsNothing(), ("root",), brokers_subjects=own),
    ):
        decided = one.decide("ann", "attach", Resource("subject", subject))
        assert isinstance(decided, Denied) is refused
        assert one.decide("root", "attach", Resource("subject", subject)) is ALLOWED


@pytest.mark.parametrize(
    ("pattern", "wanted", "covered"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a", False),
        ("a", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a.*", True),
        ("a.*", "a.>", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a.>", True),
        ("a.>", "a", False),
        ("a.b", "a.*", False),
        ("a.b.>", "a.*.c", False),
        ("*.b", "a.b", True),
    ],
)
def test_a_pattern_of_subjects_covers_another(pattern: str, wanted: str, covered: bool) -> None:
    """Only if no message of the wanted pattern is outside of the granted one."""
    assert covers(pattern, wanted) is covered


def _naive(grants: list[Grant], who: str, action: Action, on: Resource) -> bool:
    """Return the decision by the document's words, one after another."""
    if not who:
        return False
    if (action, on.kind, on.name) == ("publish", "stream", "__audit"):
        return False
    mine = [one for one in grants if one.principal in (who, "*")]
    if any(one.kind == "cluster" and "admin" in one.actions for one in mine):
        return True
    if on.kind == "subject" and on.name.split(".")[0] in (">", "*", "_INBOX", "$JS"):
        return False
    for one in mine:
        same_place = one.kind == on.kind and (not one.namespace or one.namespace == on.namespace)
        if not same_place or not (action in one.actions or action == "describe"):
            continue
        stem, star, _ = one.pattern.partition("*")
        if on.kind == "subject":
            if covers(one.pattern, on.name):
                return True
        elif not star:
            if one.pattern == on.name:
                return True
        elif on.name[: len(stem)] == stem and (on.name[:2] != "__" or stem[:2] == "__"):
            return True
    return False


@pytest.mark.parametrize("seed", seeds(40))
def test_decisions_are_those_of_the_naive_model(seed: int) -> None:
    """Random grants and questions, each asked twice: the second answer is remembered."""
    rng = random.Random(seed)
    people = ["ann", "bob", "cy"]
    patterns: dict[Kind, list[str]] = {
        "stream": ["a", "ab", "a*", "*", "__*", "__audit", "b*"],
        "group": ["a", "a*", "*"],
        "subject": ["a.>", "a.*", "a.b", ">", "b"],
        "cluster": [CLUSTER],
    }
    names: dict[Kind, list[str]] = {
        "stream": ["a", "ab", "abc", "b", "__audit", "_x"],
        "group": ["a", "ab", "b"],
        "subject": ["a.b", "a.*", "a.b.c", "b", ">", "$JS.a", "_INBOX.b", "a.>"],
        "cluster": [CLUSTER],
    }
    grants = {}
    for _ in range(rng.randrange(12)):
        kind = rng.choice([*patterns, "stream", "stream"])
        drawn = check_grant(
            Grant(
                principal=rng.choice([*people, "*"]) if kind != "cluster" else rng.choice(people),
                kind=kind,
                pattern=rng.choice(patterns[kind]),
                actions=tuple(sorted({rng.choice(ACTIONS_OF[kind]) for _ in range(3)})),
                namespace=rng.choice(["", "", "one", "two"]),
            )
        )
        grants[drawn.key] = drawn
    one = judge(*grants.values())
    for _ in range(2):
        for who in [*people, "", "nobody"]:
            for kind, found in names.items():
                for name in found:
                    for action in ACTIONS_OF[kind]:
                        for namespace in ("", "one"):
                            on = Resource(kind, name, namespace)
                            expected = _naive(list(grants.values()), who, action, on)
                            assert (one.decide(who, action, on) is ALLOWED) is expected


class AllAllowed:
    """A policy that allows everything."""

    def allows(self, principal: str, resource: str, act: str) -> bool:
        """Allow it."""
        return (principal, resource, act) != ("", "", "")

    def principals(self) -> frozenset[str]:
        """Return nobody."""
        return frozenset()


@pytest.mark.parametrize(
    "one", [judge(grant("*", "create"), admins=("root",)), PolicyJudge(AllAllowed())]
)
def test_a_name_longer_than_any_may_be_is_nobodys_and_is_not_remembered(
    one: Judge | PolicyJudge,
) -> None:
    """Nobody chooses how much memory the decisions take; the reason is short, too."""
    for who in ("ann", "root"):
        for length in (1_025, 1_000_000):
            decision = one.decide(who, "create", stream("n" * length))
            assert isinstance(decision, Denied)
            assert len(decision.reason) < 500
    assert one.decide("ann", "create", stream("n" * 1_024)) is ALLOWED
    assert one.decide("ann", "create", stream("é")) is ALLOWED
    assert one._remembered.cache_info().currsize == 0
    assert one.decide("ann", "create", stream("n" * 256)) is ALLOWED
    assert one._remembered.cache_info().currsize == 1
