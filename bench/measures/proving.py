"""Proving: the time of a read for the table versions since the last proved version.

A stream of one partition is shipped a thousand times, one record each, into a local lake. So its
table has a thousand versions. ``kept``: a new process reads and uses the proofs that tiering stored
beside the table. ``walked``: there are no stored proofs, so every version since the first is
proved. The measured plan is a cut with its lease, and opening the History on it, before the first
row.
"""

from __future__ import annotations

import shutil
import time
from typing import Final

from bench.servers import headwater
from bench.session import Session
from headwater.client import Client
from headwater.reads.history import History
from tiering.proof.proofs import CACHE
from tiering.table.table import PROOF_PREFIX

_STREAM: Final = "versions"
_VERSIONS: Final = 1_000


def run(session: Session) -> None:
    """Make the versions, then plan reads with and without kept proofs."""
    lake = session.work / "proving-lake"
    with headwater(session.work / "ours", lake_uri=str(lake), nats=False) as broker:
        client = broker.client()
        client.create_stream(_STREAM)
        with client.producer(_STREAM) as producer:
            for number in range(max(1, int(_VERSIONS * session.scale))):
                producer.send([str(number).encode()]).result()
                client.tier_flush(_STREAM)
        for _ in range(session.repeat):
            _plan(session, client, "kept")
        for folder in lake.glob(f"**/{PROOF_PREFIX}"):
            shutil.rmtree(folder)
        for _ in range(session.repeat):
            _plan(session, client, "walked")
        client.close()
    shutil.rmtree(lake, ignore_errors=True)


def _plan(session: Session, client: Client, case: str) -> None:
    CACHE.forget()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    cut = client.cut(_STREAM)
    History(client, cut)
    seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    session.recorder.add(f"proving/{case}", seconds, "s", cpu_s=cpu_s, version=cut.table_version)
    client.drop_lease(cut.lease.lease_id)
