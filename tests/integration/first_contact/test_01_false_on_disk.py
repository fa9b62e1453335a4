"""Issue 11, item 1: two streams on one subject, and what "on disk" then means."""

from __future__ import annotations

import json

import pytest

from broker.errors import CommitTimeoutError, InvalidRequestError
from broker.model.stream import Stream
from headwater.nats_publisher import NatsMessage, NatsPublisher
from simkit.brokers.ingest_rig import IngestRig
from simkit.servers.natsproc import NatsProcess

pytestmark = pytest.mark.integration


def _pay_and_audit(rig: IngestRig) -> tuple[Stream, Stream]:
    """Return two streams as an existing folder may have them: both answer on ``pay.in``."""
    pay = rig.add_stream("pay", subject="pay.in", puback=True, record_bytes_max=1000)
    audit = rig.add_stream("audit", subject="pay.>", puback=True)
    return pay, audit


def test_an_ack_of_another_stream_is_not_counted(rig: IngestRig, server: NatsProcess) -> None:
    """``pay`` is deleted and ``audit`` answers: no record of ``pay`` is reported as on disk."""
    pay, _ = _pay_and_audit(rig)
    rig.run(rig.ingest.serve(pay, {}))
    with NatsPublisher(server.url, stream=pay, ack_timeout_s=0.1, give_up_s=5) as out:
        out.publish([NatsMessage("pay.in", b"x")])
        with pytest.raises(CommitTimeoutError, match="audit"):
            out.finish()
        assert out.counts.acked == 0
    assert rig.values("pay") == []


def test_each_publisher_hears_its_own_stream(rig: IngestRig, server: NatsProcess) -> None:
    """Both streams store and answer each message; one answer counts, in either publisher."""
    pay, audit = _pay_and_audit(rig)
    for stream in (pay, audit):
        with NatsPublisher(server.url, stream=stream) as out:
            out.publish([NatsMessage("pay.in", b"%d" % number) for number in range(100)])
            assert out.finish().acked == 100
    # A stream may store the other publisher's records after that publisher has its answers.
    rig.wait(lambda: len(rig.values("pay")) + len(rig.values("audit")) >= 400, "all records")
    assert len(rig.values("pay")) == len(rig.values("audit")) == 200


def test_a_refusal_counts_for_the_stream_that_refused(rig: IngestRig, server: NatsProcess) -> None:
    """``pay`` refuses a long record, ``audit`` stores it: each publisher gets its own answer."""
    pay, audit = _pay_and_audit(rig)
    long = [NatsMessage("pay.in", b"x" * 1001)]
    with NatsPublisher(server.url, stream=audit) as out:
        out.publish(long)
        assert out.finish().acked == 1
    with NatsPublisher(server.url, stream=pay) as out:
        out.publish(long)
        with pytest.raises(InvalidRequestError, match="record_bytes_max"):
            out.finish()
        assert out.counts.acked == 0


def test_a_subject_of_another_stream_is_refused_before_it_is_sent(
    rig: IngestRig, server: NatsProcess
) -> None:
    """No answer of ``pay`` can come for it, so the publisher says so at once."""
    pay, _ = _pay_and_audit(rig)
    with NatsPublisher(server.url, stream=pay) as out:
        with pytest.raises(InvalidRequestError, match=r"does not record subject 'pay\.out'"):
            out.publish([NatsMessage("pay.out", b"x")])
        assert json.dumps(rig.values("audit")) == "[]"
