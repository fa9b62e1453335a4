"""Identity and authorization on the Flight door: service and client over real connections.

The file is not split: all tests share one service that asks.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pyarrow as pa
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet
from pyarrow import flight

from broker.adapters.access.jwt_tokens import JwtTokens
from broker.adapters.flight.config import FlightServiceConfig
from broker.adapters.flight.service import FlightService
from broker.core.access.static_tokens import TOKEN_BYTES, make_token, split_token
from broker.errors import (
    AccessDeniedError,
    InvalidRequestError,
    NoAnswerError,
    QuotaExceededError,
    TenantExistsError,
    TenantInUseError,
    UnauthenticatedError,
    UnknownTenantError,
)
from broker.model.access import CLUSTER, Action, Caller, Grant, Kind
from broker.model.quota import Quota
from broker.model.secret import Secret
from broker.model.tenant import Tenant
from broker.runtime.api.access import Access
from broker.runtime.api.identities import OWNER, OwnerToken
from headwater.client import Client
from headwater.client.access import AccessCalls
from simkit.brokers.memory_broker import MemoryBroker
from simkit.waiting import wait_until

SOON_S = 1.0  # a revocation is in force within this time, on open streams too
TRIES = 3  # to measure a time: the machine may stand still during one of them
WAIT_S = 60.0


def new_token() -> Secret:
    """Return a token that nobody else has."""
    return Secret(make_token(secrets.token_bytes(TOKEN_BYTES)))


@dataclass
class Heard:
    """An audit that does what a test wants when it hears of a call, once."""

    at: dict[str, Callable[[], object]] = field(default_factory=dict)  # by call

    def note(
        self,
        *,
        caller: Caller,
        door: str,
        call: str,
        resources: Sequence[str],
        result: str,
    ) -> None:
        """Do it."""
        self.at.pop(call, lambda: None)()


@dataclass
class Guarded:
    """A broker that asks, and the ways to it."""

    broker: MemoryBroker
    access: Access
    heard: Heard
    service: FlightService
    owner: Secret

    def client(self, token: Secret | None) -> Client:
        """Return a client with a token."""
        return Client(f"127.0.0.1:{self.service.port}", token=token)

    def token(self, principal: str, *, expires_us: int = 0) -> Secret:
        """Make a token, as the command does."""
        made = new_token()
        token_id, digest = split_token(made.reveal())
        with self.client(self.owner) as client:
            client.call(
                "create_token",
                {
                    "token_id": token_id,
                    "digest": digest,
                    "principal": principal,
                    "expires_us": expires_us,
                },
            )
        return made

    def grant(self, principal: str, kind: Kind, pattern: str, *actions: Action) -> Grant:
        """Grant, as the command does."""
        one = Grant(principal=principal, kind=kind, pattern=pattern, actions=tuple(sorted(actions)))
        self.access.grant([one])
        return one


@pytest.fixture(scope="module")
def issuer() -> ECKey:
    """Give the key pair of who signs JWTs."""
    return ECKey.generate_key("P-256")


@pytest.fixture
def guarded(tmp_path: Path, issuer: ECKey) -> Iterator[Guarded]:
    """Give a service that asks everybody, and takes the issuer's JWTs."""
    broker, owner = MemoryBroker(), new_token()
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps(KeySet([issuer]).as_dict(private=False)))
    jwts = JwtTokens(str(keys), issuer="login", audience="headwater", principal_claim="sub")
    access = Access(
        broker.metadata,
        broker.clock,
        enabled=True,
        namespace="default",
        admins=[OWNER],
        authenticators=[OwnerToken(owner), jwts],
    )
    config, heard = FlightServiceConfig(port=0, idle_check_ms=20), Heard()
    service = FlightService(broker, broker.clock, config, access=access, audit=heard)
    service.start()
    yield Guarded(broker, access, heard, service, owner)
    assert service.close(timeout_ms=10_000)
    broker.close()


def test_nobody_does_anything_and_the_owner_everything(guarded: Guarded) -> None:
    """Without a token each call is refused by its type; a wrong token is no better than none."""
    with guarded.client(None) as nobody:
        with pytest.raises(UnauthenticatedError):
            nobody.streams()
        with pytest.raises(UnauthenticatedError):
            nobody.create_stream("s")
    with guarded.client(new_token()) as stranger, pytest.raises(UnauthenticatedError):
        stranger.streams()
    with guarded.client(guarded.owner) as owner:
        owner.create_stream("s")
        assert [one.name for one in owner.streams()] == ["s"]


@pytest.mark.parametrize("call", ["do_action", "do_get", "get_flight_info", "do_put", "unknown"])
def test_a_strangers_request_is_not_looked_at(guarded: Guarded, call: str) -> None:
    """Arrow takes requests of any size, and each look at one is a copy."""
    long = b"x" * (1024 * 1024)
    raw = flight.FlightClient(f"grpc://127.0.0.1:{guarded.service.port}")

    def ask() -> None:
        match call:
            case "do_action":
                list(raw.do_action(flight.Action("whoami", long)))
            case "unknown":
                list(raw.do_action(flight.Action("x" * 10_000, b"")))
            case "do_get":
                raw.do_get(flight.Ticket(long)).read_all()
            case "get_flight_info":
                raw.get_flight_info(flight.FlightDescriptor.for_path(long))
            case "do_put":
                descriptor = flight.FlightDescriptor.for_path(long)
                writer, _ = raw.do_put(descriptor, pa.schema([("value", pa.binary())]))
                writer.close()

    with raw, pytest.raises(flight.FlightUnauthenticatedError, match="asks who you are"):
        ask()


def test_a_token_publishes_and_reads_what_was_granted_and_nothing_else(guarded: Guarded) -> None:
    """The grants of a writer and of a reader, each with its typed refusals."""
    with guarded.client(guarded.owner) as owner:
        owner.create_stream("shop-in")
        owner.create_stream("hidden")
    guarded.grant("writer", "stream", "shop-*", "publish")
    guarded.grant("reader", "stream", "shop-in", "consume")
    with guarded.client(guarded.token("writer")) as writer:
        with writer.producer("shop-in") as producer:
            producer.send([b"one"]).result(WAIT_S)
        assert [one.name for one in writer.streams()] == ["shop-in"]
        with pytest.raises(AccessDeniedError) as caught:
            list(writer.fetch("shop-in"))
        assert (caught.value.principal, caught.value.action) == ("writer", "consume")
        with pytest.raises(AccessDeniedError):
            writer.delete_stream("shop-in")
        with pytest.raises(AccessDeniedError), writer.producer("hidden") as producer:
            producer.send([b"no"]).result(WAIT_S)
    with guarded.client(guarded.token("reader")) as reader:
        assert sum(one.batch.num_rows for one in reader.fetch("shop-in")) == 1
        with pytest.raises(AccessDeniedError), reader.producer("shop-in") as producer:
            producer.send([b"no"]).result(WAIT_S)
        with pytest.raises(AccessDeniedError):
            reader.stream("hidden")


def test_a_revocation_ends_open_streams(guarded: Guarded) -> None:
    """A follower and a producer that are open hear of it within a second."""
    with guarded.client(guarded.owner) as owner:
        owner.create_stream("s")
    token = guarded.token("both")
    took_s = []
    for _ in range(TRIES):
        grant = guarded.grant("both", "stream", "s", "publish", "consume")
        with guarded.client(token) as client:
            producer = client.producer("s")
            at = producer.send([b"one"]).result(WAIT_S).base_offset
            following = client.fetch("s", start=at, follow=True)
            assert next(following).batch.num_rows == 1
            began = time.monotonic()
            guarded.access.revoke([grant])
            with pytest.raises(AccessDeniedError):
                next(following)
            took_s.append(time.monotonic() - began)
            with pytest.raises(AccessDeniedError):
                producer.send([b"two"]).result(WAIT_S)
            with pytest.raises(AccessDeniedError):
                producer.close()
    assert median(took_s) < SOON_S, took_s


def let_read(guarded: Guarded) -> None:
    """Make stream s with a record, which the principal ``reader`` may consume."""
    with guarded.client(guarded.owner) as owner:
        owner.create_stream("s")
        with owner.producer("s") as producer:
            producer.send([b"one"]).result(WAIT_S)
    guarded.grant("reader", "stream", "s", "consume")


def test_a_revocation_while_a_read_is_admitted_ends_it(guarded: Guarded) -> None:
    """It comes between the decision and the first rows: the audit hears of the call there."""
    let_read(guarded)
    token = guarded.token("reader")
    guarded.heard.at["do_get"] = lambda: guarded.access.revoke(guarded.access.grants())
    with guarded.client(token) as client, pytest.raises(AccessDeniedError):
        pytest.fail(f"rows were sent: {next(client.fetch('s', follow=True))}")


def test_a_revocation_while_a_writer_is_admitted_ends_it(guarded: Guarded) -> None:
    """Nothing of its batches is stored."""
    let_read(guarded)
    grant = guarded.grant("writer", "stream", "s", "publish")
    token = guarded.token("writer")
    guarded.heard.at["do_put"] = lambda: guarded.access.revoke([grant])
    with (
        guarded.client(token) as client,
        pytest.raises(AccessDeniedError),
        client.producer("s") as late,
    ):
        late.send([b"late"]).result(WAIT_S)
    assert guarded.broker.partitions.handle("s", 0).reads.high_watermark == 1  # of let_read


def test_a_revoked_token_ends_an_open_read(guarded: Guarded) -> None:
    """Its grants are still there, but nobody proves to have them."""
    let_read(guarded)
    token = guarded.token("reader")
    with guarded.client(token) as client:
        following = client.fetch("s", follow=True)
        next(following)
        guarded.access.revoke_token(split_token(token.reveal())[0])
        with pytest.raises(UnauthenticatedError):
            next(following)
        with pytest.raises(UnauthenticatedError):
            client.streams()


def test_a_token_ends_by_itself(guarded: Guarded) -> None:
    """Also during an open read."""
    let_read(guarded)
    token = guarded.token("reader", expires_us=guarded.broker.clock.now_us() + 1_000_000)
    with guarded.client(token) as client:
        following = client.fetch("s", follow=True)
        next(following)
        guarded.broker.clock.advance(us=1_000_000)
        with pytest.raises(UnauthenticatedError):
            next(following)


def test_a_jwt_ends_an_open_read_when_it_ends(guarded: Guarded, issuer: ECKey) -> None:
    """Not with the tolerance for clocks that its start has, and a new call is refused, too."""
    let_read(guarded)
    ends_s = guarded.broker.clock.now_us() // 1_000_000 + 60
    claims = {"iss": "login", "aud": "headwater", "sub": "reader", "exp": ends_s}
    token = Secret(jwt.encode({"alg": "ES256"}, claims, issuer, algorithms=["ES256"]))
    with guarded.client(token) as client:
        following = client.fetch("s", follow=True)
        next(following)
        guarded.broker.clock.advance(us=60_000_000)
        with pytest.raises(UnauthenticatedError):
            next(following)
        with pytest.raises(UnauthenticatedError):
            client.streams()


def test_a_stream_needs_the_right_to_its_subject(guarded: Guarded) -> None:
    """Who may create streams of a prefix may not listen to other people's requests by them."""
    guarded.grant("maker", "stream", "mine-*", "create")
    guarded.grant("maker", "subject", "mine.>", "attach")
    guarded.grant("maker", "subject", ">", "attach")
    with guarded.client(guarded.token("maker")) as maker:
        maker.create_stream("mine-a", subject="mine.a")
        maker.create_stream("mine-b", subject="other.b")
        for subject in (">", "*.a", "$SYS.>", "_INBOX.x", "$JS.API.>"):
            with pytest.raises(AccessDeniedError):
                maker.create_stream("mine-c", subject=subject)
    guarded.grant("tenant", "stream", "t-*", "create")
    guarded.grant("tenant", "subject", "t.>", "attach")
    with guarded.client(guarded.token("tenant")) as tenant:
        with pytest.raises(AccessDeniedError):
            tenant.create_stream("t-a", subject="mine.a")
        with pytest.raises(AccessDeniedError):
            tenant.create_stream("t-a", subject="*.a")
        tenant.create_stream("t-a", subject="t.a")


def test_a_tenant_is_kept_apart(guarded: Guarded) -> None:
    """Its owner lists and uses what is the tenant's; a change is in force at once."""
    with guarded.client(guarded.owner) as root:
        calls = AccessCalls(root)
        shop = Tenant(name="shop", owners=("ann",), subjects=("shop.>",))
        assert calls.create_tenant(shop)
        assert not calls.create_tenant(shop)
        with pytest.raises(TenantExistsError):
            calls.create_tenant(Tenant(name="shop"))
        root.create_stream("hr-pay", subject="hr.pay")
        guarded.grant("ann", "stream", "*", "consume", "describe")
        with guarded.client(guarded.token("ann")) as ann:
            ann.create_stream("shop-in", subject="shop.in")
            assert [one.name for one in ann.streams()] == ["shop-in"]
            assert AccessCalls(ann).tenants() == [shop]
            for name in ("hr-pay", "hr-none"):  # no difference tells whether it is there
                with pytest.raises(AccessDeniedError, match=f"stream '{name}' is not: no grant"):
                    ann.describe(name)
            with pytest.raises(AccessDeniedError):
                AccessCalls(ann).alter_tenant("shop", subjects=["hr.>"])
            assert calls.alter_tenant("shop", owners=[], principals=["ann"])
            with pytest.raises(AccessDeniedError):
                ann.create_stream("shop-out", subject="shop.out")
            assert [one.name for one in ann.streams()] == ["shop-in"]  # by the grant
        assert [one.principals for one in calls.tenants()] == [("ann",)]
        with pytest.raises(UnknownTenantError):
            calls.alter_tenant("hr", owners=[])
        with pytest.raises(TenantInUseError):
            calls.delete_tenant("shop")
        assert not calls.delete_tenant("hr")


def test_a_broker_that_asks_nobody_lets_nobody_grant(guarded: Guarded) -> None:
    """Else a stranger could make a token now, for the time when somebody begins to ask."""
    off = Access(guarded.broker.metadata, guarded.broker.clock, enabled=False, namespace="default")
    service = FlightService(
        guarded.broker, guarded.broker.clock, FlightServiceConfig(port=0), access=off
    )
    service.start()
    try:
        with Client(f"127.0.0.1:{service.port}") as client:
            told = client.call("whoami", {})[0]
            assert (told["enabled"], told["principal"]) == (False, "")
            grant = {
                "principal": "me", "kind": "cluster", "pattern": CLUSTER, "actions": ["admin"],
            }  # fmt: skip
            with pytest.raises(InvalidRequestError, match="asks nobody"):
                client.call("grant_access", {"grants": [grant]})
    finally:
        assert service.close(timeout_ms=10_000)


def let_use(guarded: Guarded, *principals: str) -> list[Secret]:
    """Make stream s, which the principals may publish to and read; return their tokens."""
    with guarded.client(guarded.owner) as owner:
        owner.create_stream("s")
    for one in principals:
        guarded.grant(one, "stream", "s", "publish", "consume")
    return [guarded.token(one) for one in principals]


def wait_held(guarded: Guarded) -> None:
    """Wait until a piece of an open call waits for its quota."""
    wait_until(lambda: guarded.access.usage._quotas._waits, "a piece is held")


def test_a_publisher_beyond_its_quota_is_held_and_loses_nothing(guarded: Guarded) -> None:
    """The clock stands still: nothing more of ann passes, and bob is not held up."""
    anns, bobs = let_use(guarded, "ann", "bob")
    guarded.access.set_quota(Quota(principal="ann", publish_bytes_per_s=4096))
    with guarded.client(anns) as ann, guarded.client(bobs) as bob:
        producer = ann.producer("s")
        sent = [producer.send([bytes([number]) * 4000]) for number in range(4)]
        assert sent[0].result(WAIT_S).base_offset == 0
        with bob.producer("s") as free:
            for _ in range(9):
                free.send([b"x" * 4000]).result(WAIT_S)
        assert not any(one.done() for one in sent[1:])
        for one in sent[1:]:
            guarded.broker.clock.advance(us=2_000_000)
            one.result(WAIT_S)
        producer.close()
        found = [value for part in bob.fetch("s") for value in part.batch["value"].to_pylist()]
    assert [one[0] for one in found if one[0] != ord("x")] == [0, 1, 2, 3]
    assert len(found) == 13


def test_what_one_principal_of_a_tenant_has_used_another_waits_for(guarded: Guarded) -> None:
    """The quota is the tenant's; the clock stands still until bob's batch is known to wait."""
    shop = Tenant(name="shop", owners=("ann", "bob"), publish_bytes_per_s=4096, open_calls=2)
    guarded.access.tenants.create(shop)
    with guarded.client(guarded.owner) as owner:
        owner.create_stream("shop-in")
    anns, bobs = guarded.token("ann"), guarded.token("bob")
    with guarded.client(anns) as ann, ann.producer("shop-in") as first:
        first.send([b"x" * 4000]).result(WAIT_S)
        with guarded.client(bobs) as bob, bob.producer("shop-in") as second:
            sent = second.send([b"y" * 4000])
            wait_held(guarded)
            assert not sent.done()
            guarded.broker.clock.advance(us=1_000_000)
            assert sent.result(WAIT_S).base_offset == 1
            with pytest.raises(QuotaExceededError, match="tenant 'shop' has 2") as refused:
                list(bob.fetch("shop-in"))
            assert refused.value.facts == {
                "principal": "bob", "tenant": "shop", "limit": "open_calls",
            }  # fmt: skip


def test_a_reader_beyond_its_quota_is_held_until_the_quota_is_gone(guarded: Guarded) -> None:
    """Another quota counts within a second, for a read that is open and waits, too."""
    anns, bobs = let_use(guarded, "ann", "bob")
    with guarded.client(bobs) as bob, bob.producer("s") as producer:
        for _ in range(2):
            producer.send([b"x" * 4000]).result(WAIT_S)
    took_s = []
    for tries in range(1, TRIES + 1):
        guarded.access.set_quota(Quota(principal="*", read_bytes_per_s=2048))
        guarded.broker.clock.advance(us=10_000_000)  # what was read before is paid for
        with guarded.client(anns) as ann:
            reading = ann.fetch("s", batch_bytes_max=4096)
            assert next(reading).batch.num_rows == 1
            wait_held(guarded)
            began = time.monotonic()
            guarded.access.remove_quota("*")
            assert next(reading).batch.num_rows == 1
            took_s.append(time.monotonic() - began)
        assert guarded.access.usage.throttled()[("token", "read")].pieces == tries
    assert median(took_s) < SOON_S, took_s


@contextmanager
def time_passing(guarded: Guarded) -> Iterator[None]:
    """Let the broker's clock go on during the block, five times as fast as it is."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(0.002):
            guarded.broker.clock.advance(us=10_000)

    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        yield
    finally:
        ended.set()
        ticking.join()


def test_requests_beyond_a_quota_are_refused_with_a_time_that_clients_wait(
    guarded: Guarded,
) -> None:
    """A client without time is told; others wait and ask again: actions, writes and reads."""
    (anns,) = let_use(guarded, "ann")
    guarded.access.set_quota(Quota(principal="a*", requests_per_s=5))
    with guarded.client(anns) as ann:

        def call() -> None:
            ann.call("brokers", {})

        def write() -> None:
            with ann.producer("s") as producer:
                producer.send([b"one"]).result(WAIT_S)

        def read() -> None:
            assert sum(one.batch.num_rows for one in ann.fetch("s")) == 1

        def refusal() -> QuotaExceededError:
            deadline = time.monotonic() + WAIT_S
            while time.monotonic() < deadline:
                try:
                    ann.call("brokers", {}, timeout_ms=150)
                except QuotaExceededError as refused:
                    return refused
                except NoAnswerError:  # the machine is busy
                    continue
                break
            raise AssertionError("it was not refused")

        for use in (call, write, read):
            for _ in range(5):
                call()
            assert refusal().facts == {
                "principal": "ann", "limit": "requests_per_s", "throttle_ms": 200,
            }  # fmt: skip
            with time_passing(guarded):
                use()
            guarded.broker.clock.advance(us=1_000_000)
    assert guarded.access.usage.throttled()["token", "requests"].pieces >= 6


def test_calls_that_are_open_are_counted(guarded: Guarded) -> None:
    """One too many is refused; others of other principals are not, and an end makes room."""
    anns, bobs = let_use(guarded, "ann", "bob")
    guarded.access.set_quota(Quota(principal="ann", open_calls=1))
    with guarded.client(anns) as ann, guarded.client(bobs) as bob:
        with ann.producer("s") as producer:
            producer.send([b"one"]).result(WAIT_S)
            with pytest.raises(QuotaExceededError, match="its quota"):
                list(ann.fetch("s"))
            assert len(list(bob.fetch("s"))) == 1
        assert len(list(ann.fetch("s"))) == 1
