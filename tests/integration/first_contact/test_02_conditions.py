"""Issue 11, item 2: JetStream's publish options are honoured, or refused by name; never ignored.

JetStream itself gets the same requests, so its meaning and its error codes are its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import nats
import pytest
from nats.js.errors import APIError, BadRequestError

from simkit.brokers.ingest_rig import IngestRig
from simkit.servers.natsproc import NatsProcess

pytestmark = pytest.mark.integration

Told = dict[str, Any]
STREAM = "pay"
SUBJECT = "pay.in"


@pytest.fixture(scope="module")
def jetstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsProcess]:
    """A nats-server with JetStream, to compare with."""
    folder = tmp_path_factory.mktemp("jetstream")
    settings = f'jetstream {{ store_dir: "{folder}" }}'
    with NatsProcess(folder, settings=settings) as process:
        yield process


async def _answers(url: str, messages: list[dict[str, str]], *, create: bool) -> list[Told]:
    connection = await nats.connect(url)
    try:
        if create:
            context = connection.jetstream(timeout=60)
            await context.add_stream(name=STREAM, subjects=[SUBJECT])
            await context.purge_stream(STREAM)
            await context.delete_stream(STREAM)
            await context.add_stream(name=STREAM, subjects=[SUBJECT])
        told = []
        for headers in messages:
            answer = await connection.request(SUBJECT, b"x", timeout=60, headers=headers or None)
            told.append(json.loads(answer.data))
        return told
    finally:
        await connection.close()


def _both(
    rig: IngestRig, server: NatsProcess, jetstream: NatsProcess, messages: list[dict[str, str]]
) -> tuple[list[Told], list[Told]]:
    """Send the messages to a stream of ours and to one of JetStream's; return the answers."""
    rig.add_stream(STREAM, subject=SUBJECT, puback=True)
    ours = asyncio.run(_answers(server.url, messages, create=False))
    theirs = asyncio.run(_answers(jetstream.url, messages, create=True))
    return ours, theirs


def _gist(told: Told) -> tuple[Any, ...]:
    error = told.get("error")
    if error is None:
        return told["stream"], told["seq"]
    return told["stream"], told["seq"], error["code"], error["err_code"]


def test_what_is_honoured_is_honoured_as_in_jetstream(
    rig: IngestRig, server: NatsProcess, jetstream: NatsProcess
) -> None:
    """The expected stream and last sequence: right, wrong, and not a number; also a repeated id."""
    messages = [
        {},
        {"Nats-Expected-Stream": STREAM},
        {"Nats-Expected-Stream": "other"},
        {"Nats-Expected-Last-Sequence": "2"},
        {"Nats-Expected-Last-Sequence": "2"},
        {"Nats-Expected-Last-Sequence": "0"},
        {"Nats-Expected-Last-Sequence": "many"},
        {"Nats-Expected-Last-Sequence": "-1"},
        {"Nats-Expected-Last-Sequence": "9" * 30},
        {"Nats-Expected-Last-Sequence": ""},
        {"Nats-Expected-Stream": STREAM, "Nats-Expected-Last-Sequence": "4"},
        {"Nats-Msg-Id": "a"},
        {"Nats-Msg-Id": "a", "Nats-Expected-Last-Sequence": "77"},
        {"nats-expected-stream": "other"},
    ]
    ours, theirs = _both(rig, server, jetstream, messages)
    assert [_gist(one) for one in ours] == [_gist(one) for one in theirs]
    missed = [one["error"]["description"] for one in ours[4:6]]
    assert missed == [one["error"]["description"] for one in theirs[4:6]]
    assert missed[0] == "wrong last sequence: 3"
    stored = [one for one in ours if "error" not in one]
    assert len(rig.values(STREAM)) == len(stored)


@pytest.mark.parametrize(
    "headers",
    [
        {"Nats-Rollup": "all"},
        {"Nats-Rollup": "sub"},
        {"Nats-TTL": "5"},
        {"Nats-TTL": "never"},
        {"Nats-Schedule": "@at 2030-01-01T00:00:00Z", "Nats-Schedule-Target": SUBJECT},
        {"Nats-Batch-Id": "u", "Nats-Batch-Sequence": "1"},
        {"Nats-Incr": "+1"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_what_a_stream_may_lack_is_refused_with_jetstreams_code(
    rig: IngestRig, server: NatsProcess, jetstream: NatsProcess, headers: dict[str, str]
) -> None:
    """As JetStream refuses it for a stream that does not allow it; the header is named."""
    (ours,), (theirs,) = _both(rig, server, jetstream, [headers])
    assert _gist(ours) == _gist(theirs)
    assert ours["error"]["description"].startswith(theirs["error"]["description"])
    assert next(iter(headers)) in ours["error"]["description"]
    assert rig.values(STREAM) == []


@pytest.mark.parametrize(
    "name",
    [
        "Nats-Expected-Last-Msg-Id",
        "Nats-Expected-Last-Subject-Sequence",
        "Nats-Expected-Last-Subject-Sequence-Subject",
        "Nats-Expected-Something-New",
        "Nats-Schedule-TTL",
        "Nats-Batch-Commit",
        "Nats-Fast-Batch-Id",
    ],
)
def test_what_is_not_checked_is_refused_by_name(
    rig: IngestRig, server: NatsProcess, name: str
) -> None:
    """A condition of a later JetStream is refused, too."""
    rig.add_stream(STREAM, subject=SUBJECT, puback=True)
    (told,) = asyncio.run(_answers(server.url, [{name: "0"}], create=False))
    assert told["error"]["code"] == 400
    assert name in told["error"]["description"]
    assert rig.values(STREAM) == []


def test_the_options_of_nats_py_raise_its_errors(rig: IngestRig, server: NatsProcess) -> None:
    """``js.publish(stream=, headers=, msg_ttl=)`` against us: an ack, or the library's error."""
    rig.add_stream(STREAM, subject=SUBJECT, puback=True)

    async def publish() -> None:
        connection = await nats.connect(server.url)
        context = connection.jetstream(timeout=60)
        try:
            ack = await context.publish(SUBJECT, b"1", stream=STREAM)
            assert (ack.stream, ack.seq) == (STREAM, 1)
            with pytest.raises(BadRequestError) as other:
                await context.publish(SUBJECT, b"x", stream="other")
            assert other.value.err_code == 10060
            with pytest.raises(BadRequestError) as late:
                await context.publish(SUBJECT, b"x", headers={"Nats-Expected-Last-Sequence": "0"})
            assert late.value.err_code == 10071
            with pytest.raises(APIError) as short:
                await context.publish(SUBJECT, b"x", msg_ttl=5.0)
            assert short.value.err_code == 10166
            last = {"Nats-Expected-Last-Sequence": "1"}
            ack = await context.publish(SUBJECT, b"2", headers=last)
            assert ack.seq == 2
        finally:
            await connection.close()

    asyncio.run(publish())
    assert rig.values(STREAM) == [b"1", b"2"]


def test_of_publishers_that_race_for_a_sequence_one_wins(
    rig: IngestRig, server: NatsProcess
) -> None:
    """Many messages in one write expect the same last sequence: one is stored."""
    rig.add_stream(STREAM, subject=SUBJECT, puback=True)

    async def race() -> list[Told]:
        connection = await nats.connect(server.url)
        headers = {"Nats-Expected-Last-Sequence": "0"}
        try:
            answers = await asyncio.gather(
                *(connection.request(SUBJECT, b"x", timeout=60, headers=headers) for _ in range(50))
            )
            return [json.loads(one.data) for one in answers]
        finally:
            await connection.close()

    told = asyncio.run(race())
    assert sum("error" not in one for one in told) == 1
    assert {one["error"]["err_code"] for one in told if "error" in one} == {10071}
    assert len(rig.values(STREAM)) == 1


def test_a_stream_of_partitions_has_no_last_sequence(rig: IngestRig, server: NatsProcess) -> None:
    """Each partition has sequences of its own, so the condition could not be checked."""
    rig.add_stream(STREAM, subject=SUBJECT, puback=True, partitions=2)
    wanted = [{"Nats-Expected-Last-Sequence": "0"}]
    (told,) = asyncio.run(_answers(server.url, wanted, create=False))
    assert "2 partitions" in told["error"]["description"]


def test_a_stream_that_only_records_keeps_other_peoples_conditions(
    rig: IngestRig, server: NatsProcess
) -> None:
    """Without puback the broker promises nothing, so the message is stored unchanged."""
    rig.add_stream("witness", subject=SUBJECT)
    rig.add_stream(STREAM, subject=SUBJECT, puback=True)
    other = [{"Nats-Expected-Stream": "other"}]
    (told,) = asyncio.run(_answers(server.url, other, create=False))
    assert told["error"]["err_code"] == 10060
    rig.wait(lambda: len(rig.rows("witness")) == 1, "the record of the witness")
    assert rig.values(STREAM) == []
