"""The gate of a door: what a header means, what open calls ask again, what the audit hears."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from broker.adapters.access.gate import Gate
from broker.adapters.access.jwt_tokens import JwtTokens
from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.liftbridge.guard import Guard
from broker.adapters.liftbridge.targets import PublishTarget
from broker.core.access.doors import LIFTBRIDGE
from broker.core.access.static_tokens import TOKEN_BYTES, make_token, split_token
from broker.errors import (
    AccessDeniedError,
    QuotaExceededError,
    UnauthenticatedError,
    UnknownStreamError,
)
from broker.model.access import CLUSTER, NOBODY, Caller, Grant
from broker.model.quota import Quota
from broker.process.watched_files import LOOK_MS
from broker.runtime.api.access import Access
from broker.wire.liftbridge import api_pb2 as api
from simkit.brokers.memory_broker import MemoryBroker

TOKEN = make_token(bytes(range(TOKEN_BYTES)))
TOKEN_ID, DIGEST = split_token(TOKEN)
GRANT = Grant(principal="ann", kind="stream", pattern="s", actions=("consume",))
S = {"name": "s"}


class Heard:
    """An audit that keeps what it hears, and does something before it returns."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.notes: list[tuple[str, str, str, tuple[str, ...], str]] = []
        self.then = then

    def note(
        self, *, caller: Caller, door: str, call: str, resources: Sequence[str], result: str
    ) -> None:
        """Keep it."""
        self.notes.append((caller.principal, door, call, tuple(resources), result))
        self.then()


@pytest.fixture
def broker() -> MemoryBroker:
    """Give a broker."""
    return MemoryBroker()


@pytest.fixture
def access(broker: MemoryBroker) -> Access:
    """Give one that asks, and knows ann, her token and her grant."""
    access = Access(broker.metadata, broker.clock, enabled=True, namespace="default")
    access.create_token(TOKEN_ID, DIGEST, "ann", expires_us=0, note="", created_by="")
    access.grant([GRANT])
    return access


def ann(gate: Gate) -> Caller:
    """Return the caller of her token."""
    return gate.caller(authorization=f"Bearer {TOKEN}", peer="here")


def test_an_open_call_goes_on_until_its_grant_is_revoked(access: Access) -> None:
    """Other changes of the grants leave it alone."""
    gate = Gate("flight", access)
    check = gate.admit_watched(ann(gate), "do_get", S)
    check()
    access.grant([Grant(principal="bob", kind="stream", pattern="s", actions=("consume",))])
    check()
    access.revoke([GRANT])
    with pytest.raises(AccessDeniedError):
        check()
    access.grant([GRANT])
    check()


def test_a_change_while_an_open_call_is_admitted_is_seen_by_its_first_check(
    access: Access,
) -> None:
    """Of the grant or of the token: the call was decided by what counted before."""
    for change, refused in (
        (lambda: access.revoke([GRANT]), AccessDeniedError),
        (lambda: access.revoke_token(TOKEN_ID), UnauthenticatedError),
    ):
        heard = Heard(change)
        gate = Gate("flight", access, heard)
        check = gate.admit_watched(ann(gate), "do_get", S)
        assert heard.notes == [("ann", "flight", "do_get", ("stream:s",), "ok")]
        with pytest.raises(refused):
            check()
        access.grant([GRANT])


def test_an_open_call_that_may_not_begin_has_no_check(access: Access) -> None:
    """There is no way to a check but by being admitted."""
    gate = Gate("flight", access)
    with pytest.raises(AccessDeniedError):
        gate.admit_watched(ann(gate), "do_get", {"name": "t"})


def test_an_open_call_ends_with_its_token(access: Access, broker: MemoryBroker) -> None:
    """When it is revoked, and when its time is over."""
    gate = Gate("flight", access)
    check = gate.admit_watched(ann(gate), "do_get", S)
    access.revoke_token(TOKEN_ID)
    with pytest.raises(UnauthenticatedError):
        check()
    end_us = broker.clock.now_us() + 10
    access.create_token(TOKEN_ID, DIGEST, "ann", expires_us=end_us, note="", created_by="")
    check = gate.admit_watched(ann(gate), "do_get", S)
    check()
    broker.clock.advance(us=10)
    with pytest.raises(UnauthenticatedError):
        check()


def test_an_open_call_ends_when_the_key_of_its_token_is_taken_away(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """A key that is added, or another one that goes, leaves the call alone."""
    one, two, three = (ECKey.generate_key("P-256", {"kid": name}) for name in ("a", "b", "c"))
    file = tmp_path / "jwks.json"

    def keep(*keys: ECKey) -> None:
        file.unlink(missing_ok=True)
        file.write_text(json.dumps(KeySet([*keys]).as_dict(private=False)))

    keep(one, two)
    jwts = JwtTokens(str(file), issuer="i", audience="h", principal_claim="sub")
    access = Access(
        broker.metadata, broker.clock, enabled=True, namespace="default", authenticators=[jwts]
    )
    access.grant([GRANT])
    claims = {"iss": "i", "aud": "h", "sub": "ann", "exp": broker.clock.now_us() // 10**6 + 60}
    token = jwt.encode({"alg": "ES256", "kid": "a"}, claims, one)
    gate = Gate("flight", access)
    check = gate.admit_watched(gate.caller(authorization=f"Bearer {token}"), "do_get", S)
    for keys in ((one, two, three), (one,), (one, two)):
        keep(*keys)
        jwts.look(at_once=False)
        check()
    file.write_text("half")
    jwts.look(at_once=False)
    check()
    for keys in ((two,), (two, ECKey.generate_key("P-256", {"kid": "a"}))):
        keep(*keys)
        jwts.look(at_once=False)
        with pytest.raises(UnauthenticatedError, match="key"):
            check()
    assert 2 * LOOK_MS + FlightServiceConfig().idle_check_ms <= 1_000, "a revocation in a second"


@pytest.mark.parametrize("authorization", [None, "", "Basic x", f"Token {TOKEN}", TOKEN])
def test_a_header_of_another_scheme_proves_nothing(
    access: Access, authorization: str | None
) -> None:
    """It is as if it were not there."""
    assert Gate("flight", access).caller(authorization=authorization).principal == ""


def test_refusals_by_a_quota_are_noted_once_in_a_minute(
    access: Access, broker: MemoryBroker
) -> None:
    """With the limit, and the number of those that were left out; each limit for itself."""
    heard = Heard()
    gate, other = (Gate(one, access, heard) for one in ("flight", "liftbridge"))
    access.set_quota(Quota(principal="ann", requests_per_s=1, open_calls=1))
    caller = ann(gate)

    def refuse(count: int, call: Callable[[Caller], None]) -> None:
        for _ in range(count):
            with pytest.raises(QuotaExceededError):
                call(caller)

    gate.count_request(caller)
    gate.enter(caller)
    refuse(3, gate.count_request)
    refuse(2, other.count_request)
    refuse(2, gate.enter)
    broker.clock.advance(us=60_000_000)
    gate.count_request(caller)
    refuse(1, other.count_request)
    refuse(1, gate.enter)
    broker.clock.advance(us=60_000_000)
    refuse(1, gate.enter)
    requests, calls = "limit:requests_per_s", "limit:open_calls"
    assert [(one[1], one[2], one[3]) for one in heard.notes] == [
        ("flight", "quota", (requests,)),
        ("flight", "quota", (calls,)),
        ("liftbridge", "quota", (requests, "left_out:4")),
        ("flight", "quota", (calls, "left_out:1")),
        ("flight", "quota", (calls,)),
    ]
    assert {one[4] for one in heard.notes} == {"QuotaExceededError"}


@pytest.mark.parametrize(
    ("door", "call", "noted"),
    [
        ("flight", "compact_replicas", True),
        ("flight", "drop_lease", True),
        ("flight", "reset_group", True),
        ("flight", "commit_positions", False),
        ("flight", "renew_lease", False),
        ("liftbridge", "SetCursor", False),
    ],
)
def test_changes_are_noted_but_for_three(access: Access, door: str, call: str, noted: bool) -> None:
    """As docs/security.md says; their refusals are noted all the same."""
    access.grant([Grant(principal="root", kind="cluster", pattern=CLUSTER, actions=("admin",))])
    values = {**S, "group": "g", "lease_id": "x"}
    heard = Heard()
    gate = Gate(door, access, heard)
    gate.admit(Caller(principal="root"), call, values)
    assert [one[2] for one in heard.notes] == [call] * noted
    with pytest.raises(AccessDeniedError):
        gate.admit(Caller(principal="stranger"), call, values)
    assert [one[2] for one in heard.notes] == [call] * (1 + noted)


def test_the_audit_hears_what_was_done_and_what_was_refused(access: Access) -> None:
    """A call that only describes is told if it is refused, and a broken call by its error."""
    heard = Heard()
    gate = Gate("flight", access, heard)
    with pytest.raises(UnauthenticatedError):
        gate.caller(authorization="Bearer wrong", peer="there")
    caller = ann(gate)
    gate.admit(caller, "do_get", S)
    gate.admit(caller, "describe_stream", S)
    with pytest.raises(AccessDeniedError):
        gate.admit(caller, "delete_stream", S)
    with pytest.raises(AccessDeniedError):
        gate.admit(caller, "describe_stream", {"name": "t"})
    with pytest.raises(UnknownStreamError), gate.call(caller, "cut", S):
        raise UnknownStreamError("gone")
    assert heard.notes == [
        ("", "flight", "identify", (), "UnauthenticatedError"),
        ("ann", "flight", "do_get", ("stream:s",), "ok"),
        ("ann", "flight", "delete_stream", ("stream:s",), "AccessDeniedError"),
        ("ann", "flight", "describe_stream", ("stream:t",), "AccessDeniedError"),
        ("ann", "flight", "cut", ("stream:s",), "UnknownStreamError"),
    ]


def test_a_gate_without_access_control_lets_everything_pass(broker: MemoryBroker) -> None:
    """Without an AccessApi, and with one that asks nobody."""
    off = Access(broker.metadata, broker.clock, enabled=False, namespace="default")
    for access in (None, off):
        gate = Gate("flight", access)
        assert gate.is_open
        assert gate.caller(authorization="Bearer x") is NOBODY
        gate.admit(NOBODY, "no such call", {})
        gate.admit_watched(NOBODY, "do_get", S)()
        assert gate.shown(NOBODY, "stream", ["a", "__b"]) == ["a", "__b"]


@pytest.mark.parametrize("kind", ["stream", "subject"])
def test_a_name_that_is_longer_than_any_is_refused_to_everybody_and_told_short(
    access: Access, kind: str
) -> None:
    """At each door alike, to administrators and whatever is granted; a stranger is one first."""
    heard, long = Heard(), "é." * 1_000_000
    access.grant([Grant(principal="ann", kind="cluster", pattern="cluster", actions=("admin",))])
    wide = {"stream": "*", "subject": ">"}[kind]
    verb = {"stream": "create", "subject": "attach"}[kind]
    access.grant([Grant(principal="ann", kind=kind, pattern=wide, actions=(verb,))])  # type: ignore[arg-type]
    for door, call in (("flight", "create_stream"), ("liftbridge", "CreateStream")):
        gate = Gate(door, access, heard)
        values = {"name": "s", "config": {"subject": "s"}, "subject": "s"}
        values |= {"name": long} if kind == "stream" else {"config": {"subject": long}}
        values |= {"subject": long} if kind == "subject" else {}
        with pytest.raises(UnauthenticatedError):
            gate.admit(NOBODY, call, values)
        with pytest.raises(AccessDeniedError) as refused:
            gate.admit(ann(gate), call, values)
        assert len(str(refused.value)) < 2_000
        assert len(str(refused.value.facts)) < 2_000
    assert [one[4] for one in heard.notes] == ["UnauthenticatedError", "AccessDeniedError"] * 2
    assert all(len(str(one)) < 2_000 for one in heard.notes)
    assert "2000000 characters, SHA-256 " in str(heard.notes[0])


def test_a_call_that_names_too_many_resources_is_refused(access: Access) -> None:
    """Nobody may make it, and the note tells the first names and how many more there were."""
    heard = Heard()
    gate = Gate("liftbridge", access, heard)
    values = {"group": "g", "streams": ["s"] * 1_000_000}
    with pytest.raises(AccessDeniedError, match="more than 1024 resources"):
        gate.admit(ann(gate), "JoinConsumerGroup", values)
    ((*_, resources, result),) = heard.notes
    assert (resources[:2], result) == (("group:g", "stream:s"), "AccessDeniedError")
    assert resources[-1] == "and 1010 more"


@pytest.mark.parametrize(("count", "passes"), [(1024, True), (1025, False)])
def test_a_call_may_name_1024_of_each_kind(access: Access, count: int, passes: bool) -> None:
    """The group of a call takes no place from the streams."""
    access.grant([Grant(principal="ann", kind="group", pattern="g", actions=("consume",))])
    gate = Gate("flight", access)
    values = {"group": "g", "streams": ["s"] * count}
    if passes:
        gate.admit(ann(gate), "join_group", values)
        return
    with pytest.raises(AccessDeniedError, match="more than 1024 resources of one kind"):
        gate.admit(ann(gate), "join_group", values)


def test_a_stranger_who_names_a_million_streams_has_no_text_made_of_each(access: Access) -> None:
    """The names stay in the message: only as many are looked at as a call may name."""
    request = api.JoinConsumerGroupRequest(groupId="g", streams=["ab"] * 1_000_000)
    payload, guard = request.SerializeToString(), Guard(Gate("liftbridge", access))
    work = guard.unary(NOBODY, "/proto.API/JoinConsumerGroup", lambda _: b"")
    tracemalloc.start()
    try:
        with pytest.raises(UnauthenticatedError):
            work(payload)
        assert tracemalloc.get_traced_memory()[1] < 8 * 1024 * 1024
    finally:
        tracemalloc.stop()


class Asked:
    """Partitions that are led here, or not; keeps which were looked up."""

    def __init__(self, led: str) -> None:
        self.led = led
        self.looked_up: list[str] = []

    def known(self, stream: str, partition: int) -> PublishTarget | None:
        """See ``PublishTargets``."""
        self.looked_up.append(stream)
        return cast("PublishTarget", partition) if stream == self.led else None

    def find(self, stream: str, partition: int) -> PublishTarget:
        """See ``PublishTargets``."""
        raise UnknownStreamError("no such stream", stream=stream)

    def rests(self, stream: str, partition: int) -> bool:
        """See ``PublishTargets``."""
        return False


def test_an_absent_name_and_a_forbidden_one_are_refused_on_the_same_path(access: Access) -> None:
    """Else the order of the refusals tells which streams of others exist."""
    heard, led = Heard(), Asked("led")
    gate = Gate("liftbridge", access, heard)
    targets = Guard(gate).publisher(ann(gate), "/proto.API/PublishAsync", led)
    for name in ("led", "absent"):
        with pytest.raises(AccessDeniedError):
            targets.known(name, 0)
    assert led.looked_up == [], "a stream was looked up before the right was asked"
    assert [one[3:] for one in heard.notes] == [
        (("stream:led",), "AccessDeniedError"),
        (("stream:absent",), "AccessDeniedError"),
    ]


def test_a_look_up_on_a_thread_asks_again_and_is_recorded_once(access: Access) -> None:
    """The right may be taken while the look-up waits for its thread."""
    right = Grant(principal="ann", kind="stream", pattern="absent", actions=("publish",))
    access.grant([right])
    heard = Heard()
    gate = Gate("liftbridge", access, heard)
    targets = Guard(gate).publisher(ann(gate), "/proto.API/Publish", Asked("led"))
    assert targets.known("absent", 0) is None
    with pytest.raises(UnknownStreamError):
        targets.find("absent", 0)
    assert [one[4] for one in heard.notes] == ["ok"]
    access.revoke([right])
    with pytest.raises(AccessDeniedError):
        targets.find("absent", 0)


def test_an_open_call_that_names_ever_new_streams_is_checked_in_bounded_memory(
    access: Access,
) -> None:
    """A stream that is not there leaves nothing behind; one that is there keeps its check."""
    access.grant([Grant(principal="ann", kind="stream", pattern="*", actions=("publish",))])
    heard = Heard()
    gate = Gate("liftbridge", access, heard)
    targets = Guard(gate).publisher(ann(gate), "/proto.API/PublishAsync", Asked("led"))
    assert targets.known("led", 0) is not None
    tracemalloc.start()
    try:
        for number in range(1_000):
            targets.known(f"absent-{number}", 0)
            with pytest.raises(UnknownStreamError):
                targets.find(f"absent-{number}", 0)
        heard.notes.clear()
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()
    assert not targets.rests("led", 0)


def test_a_right_without_a_check_is_asked_again(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest check is given up when there are too many, and made again with the next record."""
    monkeypatch.setattr("broker.adapters.liftbridge.guard.CHECKS_MAX", 2)
    right = Grant(principal="ann", kind="stream", pattern="*", actions=("publish",))
    access.grant([right])
    gate = Gate("liftbridge", access)
    targets = Guard(gate).publisher(ann(gate), "/proto.API/PublishAsync", Asked("led"))
    for name in ("led", "second"):
        targets.known(name, 0)
    assert not targets.rests("led", 0)
    targets.known("third", 0)
    assert targets.rests("led", 0), "its right is not asked any more"
    access.revoke([right])
    with pytest.raises(AccessDeniedError):
        targets.known("led", 0)


@pytest.mark.parametrize("call", sorted(LIFTBRIDGE))
def test_a_call_of_a_stranger_is_refused_when_it_opens(access: Access, call: str) -> None:
    """Before its message is received, unless everybody may make it; and the audit hears of it."""
    heard = Heard()
    guard = Guard(Gate("liftbridge", access, heard))
    if LIFTBRIDGE[call].way == "open":
        assert guard.caller(f"/proto.API/{call}", None).principal == NOBODY.principal
        return
    with pytest.raises(UnauthenticatedError, match="asks who you are"):
        guard.caller(f"/proto.API/{call}", None)
    assert heard.notes == [("", "liftbridge", call, (), "UnauthenticatedError")]
    assert guard.caller(f"/proto.API/{call}", f"Bearer {TOKEN}").principal == "ann"


def test_a_certificate_makes_a_connection_known_if_it_proves_who_calls(
    broker: MemoryBroker, access: Access
) -> None:
    """Not where certificates prove nothing, where nobody is asked, or where it names nobody."""
    certificate = {"subject": ((("commonName", "ann"),),)}
    assert Guard(Gate("liftbridge", access)).connected(certificate, ("here", 1))
    assert not Guard(Gate("liftbridge", access)).connected({}, ("here", 1))
    nameless = {"subject": ((("commonName", "\n"),),)}
    assert not Guard(Gate("liftbridge", access)).connected(nameless, ("here", 1))
    assert not Guard(Gate("liftbridge", None)).connected(certificate, ("here", 1))
    tokens = Access(
        broker.metadata, broker.clock, enabled=True, namespace="default", certificates=False
    )
    assert not Guard(Gate("liftbridge", tokens)).connected(certificate, ("here", 1))


def test_a_stranger_is_refused_before_an_unknown_call_is_named_to_them(access: Access) -> None:
    """The name of such a call is the stranger's text: the audit gets a bounded part of it."""
    heard = Heard()
    gate = Gate("flight", access, heard)
    with pytest.raises(UnauthenticatedError):
        gate.admit_known(NOBODY, "x" * 1_000_000)
    ((_, _, call, _, _),) = heard.notes
    assert len(call) < 1_000
    Gate("flight", None).admit_known(NOBODY, "whoami")
