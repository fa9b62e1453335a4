"""The committed stubs are what the pinned compiler makes of proto/, and clients understand them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from broker.wire.liftbridge import message_pb2
from projectfiles import ROOT
from tools import protos

# Source: the field numbers that Liftbridge's clients use since 1.0. They never change.
FIELD_NUMBERS: Final = {
    "Message": {
        "offset": 1,
        "key": 2,
        "value": 3,
        "timestamp": 4,
        "stream": 5,
        "partition": 6,
        "subject": 7,
        "replySubject": 8,
        "headers": 9,
        "ackInbox": 10,
        "correlationId": 11,
        "ackPolicy": 12,
    },
    "Ack": {
        "stream": 1,
        "partitionSubject": 2,
        "msgSubject": 3,
        "offset": 4,
        "ackInbox": 5,
        "correlationId": 6,
        "ackPolicy": 7,
        "receptionTimestamp": 8,
        "commitTimestamp": 9,
        "ackError": 10,
    },
}


def test_the_committed_stubs_are_fresh() -> None:
    """Generating into a scratch folder gives the committed stubs, byte for byte, and no others."""
    assert protos.drift() == []


def test_drift_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed stub, a missing one and one without a source are each reported."""
    protos.generate(tmp_path)
    folder = tmp_path / "broker/wire/liftbridge"
    (folder / "message_pb2.py").write_text("# edited by hand\n", encoding="utf-8")
    (folder / "message_pb2.pyi").rename(folder / "gone_pb2.pyi")
    monkeypatch.setattr(protos, "ROOT", tmp_path)
    assert sorted(sentence.split("/")[-1] for sentence in protos.drift()) == [
        "gone_pb2.pyi has no source",
        "message_pb2.py differs from a fresh stub",
        "message_pb2.pyi is missing",
    ]


@pytest.mark.parametrize("name", sorted(FIELD_NUMBERS))
def test_messages_keep_liftbridges_field_numbers(name: str) -> None:
    """Names and numbers of the fields are those that existing clients send."""
    fields = message_pb2.DESCRIPTOR.message_types_by_name[name].fields
    assert {field.name: field.number for field in fields} == FIELD_NUMBERS[name]


def test_enums_keep_liftbridges_values() -> None:
    """Ack policies and ack errors have the values that existing clients send."""
    assert message_pb2.DESCRIPTOR.package == "proto"
    assert dict(message_pb2.AckPolicy.items()) == {"LEADER": 0, "ALL": 1, "NONE": 2}
    assert dict(message_pb2.Ack.Error.items()) == {
        "OK": 0,
        "UNKNOWN": 1,
        "INCORRECT_OFFSET": 2,
        "TOO_LARGE": 3,
        "ENCRYPTION": 4,
    }


def test_reading_messages_does_not_load_grpc() -> None:
    """A process that only decodes messages pays for protobuf, not for gRPC."""
    program = "import sys, broker.wire.liftbridge.message_pb2; sys.exit('grpc' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
