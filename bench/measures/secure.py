"""What security costs: publish, read and single records by Flight, with it and without it.

Two brokers of one build take turns: an open one, and one with TLS, identity and authorization. The
clients of the second prove who they are by a static token, and have grants on the stream; it writes
its audit, too. The reads come from the page cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.measures.publish import ROWS, SIZES, WINDOW
from bench.processes import Load, run_loads
from bench.servers import BrokerServer, headwater
from bench.session import Session
from broker.model.access import Grant
from headwater.client import Client
from headwater.client.access import AccessCalls
from headwater.local.cluster_certificates import make_certificates

_RECORDS: Final = {"100B": 4_000_000, "1KiB": 500_000}
_SINGLES: Final = 5_000
_PRINCIPAL: Final = "load"
_GRANT: Final = Grant(
    principal=_PRINCIPAL, kind="stream", pattern="load-*", actions=("consume", "publish")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One of the brokers, its administrator, and what a load needs to reach it."""

    name: str
    url: str
    broker: BrokerServer
    admin: Client
    env: Mapping[str, str]


def run(session: Session) -> None:
    """Publish, read and send single records in turns; each turn has a stream of its own."""
    with contextlib.ExitStack() as stack:
        sides = [
            stack.enter_context(_open_side(session.work / "open")),
            stack.enter_context(_secure_side(session.work / "secure")),
        ]
        for size in SIZES:
            turns = {one.name: partial(_turn, session, one, size=size) for one in sides}
            session.rounds(turns)


@contextlib.contextmanager
def _open_side(folder: Path) -> Iterator[_Side]:
    with headwater(folder, nats=False) as broker, broker.client() as admin:
        yield _Side(name="open", url=broker.url, broker=broker, admin=admin, env={})


@contextlib.contextmanager
def _secure_side(folder: Path) -> Iterator[_Side]:
    files = make_certificates(
        folder / "certs", cluster="bench", brokers=["b1"], hosts={"b1": ["127.0.0.1"]}
    )["b1"]
    owner_file, load_file = folder / "owner.token", folder / "load.token"
    settings = {
        "HEADWATER_FLIGHT_TLS_CERT_FILE": str(files.cert_file),
        "HEADWATER_FLIGHT_TLS_KEY_FILE": str(files.key_file),
        "HEADWATER_ACCESS_ENABLED": "true",
        "HEADWATER_ACCESS_OWNER_TOKEN_FILE": str(owner_file),
    }
    with headwater(folder, nats=False, env=settings) as broker:
        url = broker.url.replace("grpc://", "grpc+tls://")
        owner = owner_file.read_text().strip()
        with Client(url, tls_ca_file=files.ca_file, token=owner) as admin:
            access = AccessCalls(admin)
            made = access.create_token(_PRINCIPAL)
            load_file.write_text(made.token.reveal())
            access.grant([_GRANT])
            env = {
                "HEADWATER_TOKEN_FILE": str(load_file),
                "HEADWATER_TLS_CA_FILE": str(files.ca_file),
            }
            yield _Side(name="secure", url=url, broker=broker, admin=admin, env=env)


def _turn(session: Session, side: _Side, number: int, *, size: str) -> None:
    records = session.count(_RECORDS[size], multiple=ROWS)
    case, stream = f"secure/{size}", f"load-{size}-{number}"
    where = {"url": side.url, "stream": stream}
    side.admin.create_stream(stream, tiering=False)
    batches = {"rows": ROWS, "batches": records // ROWS, "window": WINDOW}
    published = _run(side, "flight_publish", **where, size=SIZES[size], **batches)
    _add_rate(session, f"{case}/publish_{side.name}", published, records)
    found = _run(side, "flight_read", **where, columns=None)
    assert found["records"] == records, f"only {found['records']} of {records} records arrived"
    _add_rate(session, f"{case}/read_{side.name}", found, records)
    count = session.count(_SINGLES)
    single = _run(side, "flight_latency", **where, size=SIZES[size], count=count)
    for part in ("p50", "p99"):
        session.recorder.add(f"{case}/single_{side.name}_{part}", single[f"{part}_us"] / 1000, "ms")
    side.admin.delete_stream(stream)


def _run(side: _Side, kind: str, **arguments: Any) -> dict[str, Any]:
    """Run one load; return its result, with the CPU time that the broker used for it."""
    load = Load(kind, env=side.env, **arguments)
    cpu_s = side.broker.process.cpu_s()
    (found,) = run_loads([load])
    return {**found, "broker_cpu_s": side.broker.process.cpu_s() - cpu_s}


def _add_rate(session: Session, name: str, found: Mapping[str, Any], records: int) -> None:
    took_s = (found["end_ns"] - found["start_ns"]) / 1e9
    cpu_s = found["broker_cpu_s"]
    session.recorder.add(name, records / took_s, "rec/s", records=records, broker_cpu_s=cpu_s)
