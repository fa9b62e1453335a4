"""``headwater publish`` by NATS says which records the broker did not store again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from broker.codec.nats.puback import PubAckEncoder
from broker.model.epochs import LeaderEpoch
from broker.model.offsets import Offset
from headwater.cli import publish
from simkit.brokers.memory_broker import MemoryBroker
from simkit.servers.scripted_nats import ScriptedNats

SAME_ID = ("-H", "Nats-Msg-Id: x")


def _published(run: Callable[..., Any], broker: MemoryBroker, *options: str) -> Any:
    """Publish three records; the broker's answers are a PubAck, and two of duplicates."""
    made = run("stream", "create", "orders", "--puback", "--key-header", "Nats-Msg-Id")
    assert made.exit_code == 0, made.output
    encoder = PubAckEncoder(broker.streams.get("orders"), 0)

    async def main() -> Any:
        async with ScriptedNats() as server:
            args = ("publish", "orders", "--nats", server.url, *options)
            command = asyncio.create_task(asyncio.to_thread(run, *args, stdin="a\nb\nc\n"))
            await server.until(lambda: len(server.published) == 3)
            for number, one in enumerate(server.published):
                duplicate = number > 0
                data = encoder.encode(Offset(0), LeaderEpoch(1), duplicate=duplicate)
                server.say(one.reply, data)
            return await command

    return asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("options", [SAME_ID, ("-k", "x")], ids=["header", "key header"])
def test_records_with_a_message_id_of_the_user_are_told_as_duplicates(
    run: Callable[..., Any], broker: MemoryBroker, options: tuple[str, ...]
) -> None:
    """Three records with one id were reported as three on disk while one was stored."""
    result = _published(run, broker, *options)
    assert result.exit_code == 0, result.output
    told = " ".join(result.stderr.split())
    assert "3 records sent, 3 acknowledged, 2 of them as duplicates" in told
    assert "on disk" not in told
    assert "Nats-Msg-Id" in told


def test_duplicates_are_in_the_report_for_programs(
    run: Callable[..., Any], broker: MemoryBroker
) -> None:
    """The number of acknowledged records alone hides that two were not stored."""
    report = json.loads(_published(run, broker, *SAME_ID, "--json").stdout)
    assert (report["sent"], report["acked"], report["duplicates"]) == (3, 3, 2)


def test_records_that_the_command_sent_twice_itself_are_on_disk(
    run: Callable[..., Any], broker: MemoryBroker
) -> None:
    """An id of the publisher's own names one record: its duplicate is that record, stored once."""
    result = _published(run, broker)
    assert "3 records sent, 3 on disk" in " ".join(result.stderr.split())


def test_a_command_that_stops_claims_no_duplicate_to_be_on_disk(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What it says before its error is as honest as the report at the end."""

    class Broken:
        acked = 3
        duplicates = 2

        def send(self, records: list[Any]) -> None:
            raise KeyboardInterrupt

        def finish(self) -> None:
            raise AssertionError

    class Kept:
        def convert(self, group: list[bytes]) -> list[bytes]:
            return group

    with pytest.raises(KeyboardInterrupt):
        publish._run(Kept(), [[b"a"]], Broken(), typed=True)  # type: ignore[arg-type]
    told = " ".join(capsys.readouterr().err.split())
    assert "3 acknowledged, 2 of them as duplicates" in told
    assert "on disk" not in told
