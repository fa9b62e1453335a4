"""docs/security.md, "A hardened cluster": set up by the page, then tried by a tenant at every door.

The tenant ``shop`` has a token, and another tenant is beside it. By the command, Flight,
Liftbridge's Go client, NATS and Spark it publishes and reads its own streams, and is refused
everything else by a typed error; the audit, read by Spark, tells all of it. The tests share one
cluster, in one worker with Spark's session.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import nats
import pyarrow.parquet as pq
import pytest

import headwater
from broker.codec.audit_record import AuditCheck
from broker.codec.flight.protocol import ReadRequest
from broker.errors import (
    AccessDeniedError,
    AccessError,
    NoAnswerError,
    QuotaExceededError,
    UnauthenticatedError,
    UnavailableError,
)
from broker.model.access import CLUSTER, Grant
from broker.model.quota import Quota
from broker.model.secret import Secret
from broker.runtime.api.identities import OWNER
from clusterkit.foreign_program import build_go, play
from clusterkit.hardened import (
    BROKERS,
    PASSWORDS,
    Hardened,
    hardened_cluster,
    page_blocks,
    page_commands,
)
from headwater.client import Client
from headwater.client.access import AccessCalls
from headwater.client.address import read_token, resolve_addresses
from headwater.client.brokers import Brokers
from headwater.client.fetch import Fetch
from headwater.client.flight_connection import Connection
from headwater.client.read_route import ReadRoute
from headwater.local.embedded import LOOPBACK, http_status
from headwater.nats_login import NatsLogin
from headwater.nats_publisher import check_connection
from simkit.servers.certificates import Authority
from simkit.servers.spark_session import as_user

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

SOON_S = 1.0  # a revocation is in force within this time, on every broker
TRIES = 3  # to measure a time: the machine may stand still during one of them
PATIENCE_S = 60.0
STREAM, HIDDEN = "shop-in", "hidden"


@pytest.fixture(scope="module")
def cluster(
    spark: SparkSession,
    moto_env: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Hardened]:
    """Run the page's cluster, and a stream of others."""
    folder = tmp_path_factory.mktemp("hardened")
    with hardened_cluster(folder, "s3://headwater-tests/hardened", moto_env) as running:
        with running.client("ops") as ops:
            ops.create_stream(HIDDEN, subject="hr.payroll")
            with ops.producer(HIDDEN) as producer:
                producer.send([b"secret"]).result(PATIENCE_S)
        yield running


def test_the_page_has_ten_commands(cluster: Hardened) -> None:
    """They were run as they stand; the last one read what the tenant published."""
    assert len(page_commands()) == 10
    assert pq.read_table(cluster.user / "shop.parquet")["value"].to_pylist()[0] == b"one"


def test_the_command(cluster: Hardened) -> None:
    """A tenant's list has its streams only; a refusal ends a command with its name."""
    told = cluster.run("headwater stream list", principal="shop")
    assert STREAM in told
    assert HIDDEN not in told
    told = cluster.run(f"headwater read {HIDDEN}", principal="shop", ok=False)
    assert "AccessDeniedError" in told
    nobody = "unset HEADWATER_TOKEN_FILE; headwater stream list"
    assert "UnauthenticatedError" in cluster.run(nobody, principal="shop", ok=False)


def test_another_tenant(cluster: Hardened) -> None:
    """The section "Tenants", as it stands: neither tenant reaches what is the other's."""
    (commands,) = page_blocks("sh", "Tenants")
    told = cluster.run(commands, principal="ops")
    assert re.search(r"^streams +hr-pay *$", told, re.MULTILINE), told
    told = cluster.run("headwater stream list", principal="hr")
    assert "hr-pay" in told
    assert STREAM not in told
    for foreign, subject, principal in (
        ("shop-b", "hr.b", "hr"),
        ("hr-b", "shop.b", "hr"),
        ("hr-b", "hr.b", "shop"),
        ("shop-b", "hr.b", "shop"),
    ):
        command = f"headwater stream create {foreign} --subject {subject}"
        assert "AccessDeniedError" in cluster.run(command, principal=principal, ok=False)
    told = cluster.run("headwater access tenant delete hr", principal="ops", ok=False)
    assert "TenantInUseError" in told


def test_who_is_not_whom_a_door_knows_gets_nothing(cluster: Hardened) -> None:
    """Plain text, another authority, the token of another broker's owner, metrics without one."""
    owner = read_token(cluster.folder / "b1" / "owner.token")
    foreign = cluster.folder / "foreign.crt"
    foreign.write_bytes(Authority("foreign").cert)
    ways = [
        (Client(cluster.url_of("b1").replace("+tls", ""), token=owner), NoAnswerError),
        (Client(cluster.url_of("b1"), tls_ca_file=foreign, token=owner), NoAnswerError),
        (
            Client(cluster.url_of("b2"), tls_ca_file=cluster.ca_file, token=owner),
            UnauthenticatedError,
        ),
    ]
    for client, kind in ways:
        with client, pytest.raises(kind):
            client.streams()
    assert http_status(cluster.http_ports["b1"], "GET", "/metrics") == 401


ROOT_GRANT = {"principal": "shop", "kind": "cluster", "pattern": CLUSTER, "actions": ["admin"]}
LOSS = {"partition_epoch": 1, "known_end": 1, "operator": "me", "accept_data_loss": True}
# Actions that a tenant may not take, by the name that the audit has.
ACTIONS: dict[str, dict[str, Any]] = {
    "cut": {"name": HIDDEN, "owner": "me", "ttl_ms": 1_000},
    "take_lease": {"name": HIDDEN, "owner": "me", "ttl_ms": 1_000},
    "describe_stream": {"name": HIDDEN},
    "delete_stream": {"name": HIDDEN},
    "alter_stream": {"name": HIDDEN, "changes": {"puback": True}},
    "purge_partition": {"name": HIDDEN, "partition": 0, "before": 1, "operator": "me"},
    "elect_unclean": {"name": HIDDEN, "partition": 0, "broker": "b1", **LOSS},
    "cluster_status": {},
    "move_partition": {"name": STREAM, "partition": 0, "target": ["b1"]},
    "grant_access": {"grants": [ROOT_GRANT]},
    "create_token": {"token_id": "0" * 16, "digest": "0" * 64, "principal": "ops"},
    "list_access": {},
}


def refuse_all(client: Client, kind: type[AccessError]) -> set[str]:
    """Make these calls and others; each has to be refused. Return their names in the audit."""

    def publish() -> None:
        with client.producer(HIDDEN) as producer:
            producer.send([b"no"]).result(PATIENCE_S)

    def read_unasked() -> None:  # without the question where the stream is
        with closing(Connection(client.address.brokers[0])) as connection:
            connection.get(ReadRequest(stream=HIDDEN, partition=0)).read()

    attempts: list[Callable[[], object]] = [
        publish,
        read_unasked,
        lambda: list(client.fetch(HIDDEN)),
        lambda: list(client.fetch("__audit")),
        lambda: client.create_stream("other"),
        lambda: client.create_stream("shop-spy", subject="hr.payroll"),
        lambda: client.create_stream("shop-spy", subject=">"),
        *(partial(client.call, name, values) for name, values in ACTIONS.items()),
    ]
    for attempt in attempts:
        with pytest.raises(kind):
            pytest.fail(f"{attempt} was not refused: {attempt()!r}")
    return {"do_get", "create_stream", *ACTIONS}


def test_flight(cluster: Hardened) -> None:
    """The tenant publishes, reads and consumes in its group; each other call is refused as such."""
    with cluster.client("shop") as shop:
        with shop.producer(STREAM) as producer:
            producer.send([b"by flight"]).result(PATIENCE_S)
        values = [v for part in shop.fetch(STREAM) for v in part.batch["value"].to_pylist()]
        assert values[-1] == b"by flight"
        refuse_all(shop, AccessDeniedError)
    with cluster.client(None) as nobody:
        refuse_all(nobody, UnauthenticatedError)


def test_liftbridges_go_client(cluster: Hardened) -> None:
    """The client is unmodified; tests/peers/go/guarded.go says what it tries."""
    program = build_go(cluster.folder / "liftpeer")
    files = ["-ca", str(cluster.ca_file), "-token", str(cluster.token_file("shop"))]
    play([str(program), "-addrs", cluster.liftbridge, *files, "guarded", STREAM, HIDDEN])


def test_nats(cluster: Hardened) -> None:
    """NATS lets the tenant publish below its subject and hear its own acknowledgements only."""

    async def tried() -> None:
        refused: asyncio.Queue[Exception] = asyncio.Queue()
        context = ssl.create_default_context(cafile=str(cluster.folder / "nats-ca.crt"))
        connection = await nats.connect(
            f"tls://{LOOPBACK}:{cluster.nats.port}",
            tls=context,
            user="shop",
            password=PASSWORDS["SHOP_PASSWORD"],
            inbox_prefix=b"_INBOX.shop",
            error_cb=refused.put,
        )
        try:
            answer = await connection.request("shop.in", b"by nats", timeout=PATIENCE_S)
            assert json.loads(answer.data)["stream"] == STREAM
            for attempt in (
                connection.subscribe("shop.>"),
                connection.subscribe("_INBOX.>"),
                connection.subscribe("_INBOX.headwater.>"),
                connection.publish("hr.payroll", b"no"),
                connection.publish("prod.shop-in.0.replicate", b"forged"),
            ):
                await attempt
                error = await asyncio.wait_for(refused.get(), PATIENCE_S)
                assert "permissions violation" in str(error).lower()
        finally:
            await connection.close()

    asyncio.run(tried())


def test_a_nats_server_of_an_unknown_authority_is_a_typed_error(cluster: Hardened) -> None:
    """The publisher says so within seconds; it used to wait for ever."""
    url = f"tls://{LOOPBACK}:{cluster.nats.port}"
    with pytest.raises(UnavailableError, match="certificate verify failed"):
        check_connection(url, NatsLogin(user="shop", password=PASSWORDS["SHOP_PASSWORD"]))


# ---------------------------------------------------------------------- revocation


def known_everywhere(cluster: Hardened, token: Secret) -> None:
    """Wait until every broker has applied a token that is new."""
    deadline = time.monotonic() + PATIENCE_S
    for broker in BROKERS:
        with Client(cluster.url_of(broker), tls_ca_file=cluster.ca_file, token=token) as client:
            while True:
                try:
                    client.streams()
                    break
                except UnauthenticatedError:
                    assert time.monotonic() < deadline, broker
                    time.sleep(0.02)


def test_a_revocation_ends_open_reads_on_every_broker(cluster: Hardened) -> None:
    """Readers that follow at the leader and at both other brokers hear of it within a second."""
    with cluster.client("ops") as ops:
        access = AccessCalls(ops)
        token = access.create_token("reader").token
        known_everywhere(cluster, token)
        took = [_slowest_end_s(cluster, access, token) for _ in range(TRIES)]
    assert median(took) < SOON_S, took


def _slowest_end_s(cluster: Hardened, access: AccessCalls, token: Secret) -> float:
    """Open a read at each broker, revoke the right to them; return when the last one has ended."""
    grant = Grant(principal="reader", kind="stream", pattern=STREAM, actions=("consume",))
    request = ReadRequest(stream=STREAM, partition=0, follow=True)
    ended: dict[str, tuple[type[Exception], float]] = {}

    def wait(broker: str, read: Fetch) -> None:
        try:
            while True:
                next(read)
        except AccessError as error:
            ended[broker] = (type(error), time.monotonic())

    with ExitStack() as stack:
        access.grant([grant])
        waiting = []
        for broker in BROKERS:
            url = cluster.url_of(broker)
            brokers = Brokers(resolve_addresses(url, tls_ca_file=cluster.ca_file, token=token))
            stack.callback(brokers.close)
            read = stack.enter_context(_begun(brokers, request))
            waiting.append(threading.Thread(target=wait, args=(broker, read)))
        for thread in waiting:
            thread.start()
        began = time.monotonic()
        access.revoke([grant])
        for thread in waiting:
            thread.join(PATIENCE_S)
    assert {broker: kind for broker, (kind, _) in ended.items()} == dict.fromkeys(
        BROKERS, AccessDeniedError
    )
    return max(at - began for _, at in ended.values())


def _begun(brokers: Brokers, request: ReadRequest) -> Fetch:
    """Return a read that has rows, once its broker has heard of the grant."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        read = Fetch(ReadRoute(brokers, request), request)
        try:
            assert next(read).batch.num_rows
        except AccessDeniedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return read


def test_a_quota_counts_on_every_broker(cluster: Hardened) -> None:
    """Within a second; what one broker let through, another one does not know of."""

    def is_throttled(client: Client) -> bool:
        try:
            client.call("brokers", {}, timeout_ms=100)
        except QuotaExceededError as error:
            return bool(error.limit == "requests_per_s")
        except NoAnswerError:  # the machine is busy
            pass
        return False

    with cluster.client("ops") as ops, ExitStack() as stack:
        access = AccessCalls(ops)
        token = access.create_token("busy").token
        clients = [
            stack.enter_context(
                Client(cluster.url_of(broker), tls_ca_file=cluster.ca_file, token=token)
            )
            for broker in BROKERS
        ]
        took = []
        known_everywhere(cluster, token)
        for _ in range(TRIES):
            for one in clients:
                one.call("brokers", {})  # a busy machine needs longer for TLS than a refusal
            assert not any(is_throttled(one) for one in clients)
            access.set_quota(Quota(principal="busy", requests_per_s=1))
            began = time.monotonic()
            for one in clients:
                while not is_throttled(one):
                    assert time.monotonic() - began < PATIENCE_S
            took.append(time.monotonic() - began)
            access.remove_quota("busy")
            for one in clients:
                while is_throttled(one):
                    assert time.monotonic() - began < PATIENCE_S
    assert median(took) < SOON_S, took


# ---------------------------------------------------------------------- Spark, and the audit


def test_spark_and_the_audit(cluster: Hardened, spark: SparkSession) -> None:
    """The tenant reads its stream from both tiers, and writes; the audit has every refusal."""
    with cluster.client("shop") as shop:
        shop.tier_flush(STREAM)
    with as_user(spark, cluster.variables("shop")):
        rows = spark.sql("select cast('by spark' as binary) as value")
        rows.write.format("headwater").mode("append").options(stream=STREAM).save()
        unified = {bytes(row.value) for row in headwater.read(spark, STREAM).collect()}
        source = spark.read.format("headwater").option("stream", STREAM).load().collect()
        assert unified == {bytes(row.value) for row in source}
        assert unified >= {b"one", b"by spark"}
        with pytest.raises(AccessDeniedError):
            headwater.read(spark, HIDDEN)
        with pytest.raises(Exception, match="AccessDeniedError"):
            spark.read.format("headwater").option("stream", HIDDEN).load().collect()
    with cluster.client("ops") as ops:
        made = AccessCalls(ops).create_token("nosy")
        with Client(cluster.url, tls_ca_file=cluster.ca_file, token=made.token) as nosy:
            refused = refuse_all(nosy, AccessDeniedError)
        deadline = time.monotonic() + PATIENCE_S
        while missing := missing_in(audit_values(ops), refused):
            assert time.monotonic() < deadline, missing
            time.sleep(0.05)  # each broker stores its notes within a quarter of a second
    with as_user(spark, {**cluster.variables("ops"), "HEADWATER_SERVER": cluster.url_of("b2")}):
        read = headwater.read(spark, "__audit", server=cluster.url_of("b2"))
        values = [bytes(row.value) for row in read.orderBy("partition", "offset").collect()]
    check = AuditCheck()
    for number, value in enumerate(values):
        check.take(value, str(number))
    assert check.problems == []
    assert missing_in(values, refused) == set()


def audit_values(client: Client) -> list[bytes]:
    """Return the records of the audit, by Flight."""
    return [value for part in client.fetch("__audit") for value in part.batch["value"].to_pylist()]


def missing_in(values: list[bytes], refused: set[str]) -> set[tuple[str, str, str]]:
    """Return the notes that the audit lacks: those of ``nosy``, whose calls were refused, and more.

    A note has who called, which call, and with which result.
    """
    told = {(one["principal"], one["call"], one["result"]) for one in map(json.loads, values)}
    expected = {
        (OWNER, "create_token", "ok"),
        ("ops", "create_tenant", "ok"),
        ("shop", "create_stream", "ok"),
        ("shop", "do_put", "ok"),
        ("shop", "do_get", "ok"),
        ("shop", "cut", "AccessDeniedError"),
    }
    return (expected | {("nosy", one, "AccessDeniedError") for one in refused}) - told
