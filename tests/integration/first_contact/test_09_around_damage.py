"""Issue 11, item 9: records that are intact are read around damage; the damage is named exactly."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import headwater
from broker.codec.record_batch import HEADER_SIZE
from broker.errors import LogFailedError, SegmentCorruptError
from crashkit.stage import Stage, staged

pytestmark = [pytest.mark.integration, pytest.mark.slow]

VALUES = [b"<%03d>" % number * 80 for number in range(120)]  # in batches of ten
DAMAGED = range(40, 60)  # two neighbouring batches


def _publish(stage: Stage) -> Path:
    """Return the folder of the partition's log, which has several segments."""
    created = stage.client.create_stream("s", segment_bytes_max=32 * 1024, tiering=False)
    with stage.client.producer("s") as producer:
        for start in range(0, len(VALUES), 10):
            values = pa.array(VALUES[start : start + 10], pa.binary())
            producer.send(pa.record_batch([values], names=["value"])).result(60)
    return stage.broker.data_dir / "streams" / created.uuid / "0"


def _flip(folder: Path) -> Path:
    """Flip a byte of the bodies of the two batches, in a sealed segment; return its file."""
    for segment in sorted(folder.glob("*.log"))[:-1]:
        content = segment.read_bytes()
        places = [content.find(VALUES[offset]) for offset in (DAMAGED[0], DAMAGED[10])]
        if min(places) > HEADER_SIZE:
            with segment.open("r+b") as file:
                for place in places:
                    file.seek(place)
                    file.write(bytes([content[place] ^ 0x40]))
            return segment
    raise AssertionError("the two batches are not within one sealed segment")


def _headwater(stage: Stage, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "headwater", *arguments, "--server", stage.broker.url]
    return subprocess.run(command, capture_output=True, timeout=120, check=False)


def _printed(values: list[bytes]) -> bytes:
    return b"".join(value + b"\n" for value in values)


def _fetched(stage: Stage, start: int, end: int | None = None) -> list[bytes]:
    with stage.client.fetch("s", start=start, end=end) as parts:
        return [value for part in parts for value in part.batch["value"].to_pylist()]


def _fetch_into(got: list[bytes], stage: Stage, start: int) -> None:
    with stage.client.fetch("s", start=start) as parts:
        for part in parts:
            got += part.batch["value"].to_pylist()


def _check(stage: Stage, file: str) -> None:
    """Read before, behind and across the damage."""
    before, behind = DAMAGED.start, DAMAGED.stop
    for start, end in [(0, 3), (0, before), (before - 1, before), (behind, 120), (behind + 5, 70)]:
        assert _fetched(stage, start, end) == VALUES[start:end]
    assert _fetched(stage, behind) == VALUES[behind:]
    for start in (0, before, before + 3, before + 10, behind - 1):
        got: list[bytes] = []
        with pytest.raises(SegmentCorruptError) as caught:
            _fetch_into(got, stage, start)
        assert got == VALUES[start : max(start, before)]
        told = caught.value
        assert (told.path, told.partition, told.readable_from) == (file, 0, behind)
        assert before <= told.offset <= max(start, before) < told.end_offset == behind

    table, certificate = headwater.read_table("s", as_of={0: before}, server=stage.broker.url)
    assert table["value"].to_pylist() == VALUES[:before]
    assert certificate.records_count == before
    with pytest.raises(SegmentCorruptError):
        headwater.read_table("s", server=stage.broker.url)
    refused = (LogFailedError, SegmentCorruptError)
    with pytest.raises(refused), stage.client.producer("s") as producer:
        producer.send([b"more"]).result(60)


def _check_commands(stage: Stage, file: str, tmp_path: Path) -> None:
    """Check the same reads by commands."""
    before, behind = DAMAGED.start, DAMAGED.stop
    first = _headwater(stage, "subscribe", "s", "--from", "0", "-n", "3", "--format", "raw")
    assert (first.returncode, first.stdout) == (0, _printed(VALUES[:3])), first.stderr
    whole = _headwater(stage, "subscribe", "s", "--format", "raw")
    assert (whole.returncode, whole.stdout) == (1, _printed(VALUES[:before])), whole.stderr
    said = whole.stderr.decode()
    assert "SegmentCorruptError" in said
    assert file in said
    assert f"offsets [{before}, {behind})" in said
    assert f"-p 0 --from {behind}" in said
    assert f"-p 0 --to {before}" in said
    rest = _headwater(stage, "subscribe", "s", "--from", str(behind), "--format", "raw")
    assert (rest.returncode, rest.stdout) == (0, _printed(VALUES[behind:])), rest.stderr

    target = tmp_path / "out.jsonl"
    failed = _headwater(stage, "read", "s", "-o", str(target))
    assert failed.returncode == 1
    assert not target.exists()
    assert b"SegmentCorruptError" in failed.stderr
    assert b"xact" not in failed.stdout + failed.stderr, "no certificate over damage"


def _found_while_running(stage: Stage, folder: Path) -> Path:
    return _flip(folder)


def _found_after_a_restart(stage: Stage, folder: Path) -> Path:
    """A start trusts the index of a sealed segment; a reader of the log finds the damage."""
    stage.broker.kill()
    file = _flip(folder)
    stage.broker.start()
    assert stage.broker.wait_answering()
    return file


def _found_by_the_start(stage: Stage, folder: Path) -> Path:
    """Without its index the segment is scanned, and the replica fails at once."""
    stage.broker.kill()
    file = _flip(folder)
    file.with_suffix(".index").unlink()
    stage.broker.start()
    assert stage.broker.wait_answering()
    return file


@pytest.mark.parametrize("how", [_found_while_running, _found_after_a_restart, _found_by_the_start])
def test_what_is_intact_is_read_around_the_damage(
    tmp_path: Path, how: Callable[[Stage, Path], Path]
) -> None:
    """A lone broker: also when it starts once more with the damage that it met before."""
    with staged(tmp_path) as stage:
        damaged = how(stage, _publish(stage))
        file = str(damaged.relative_to(stage.broker.data_dir))
        _check(stage, file)
        _check_commands(stage, file, tmp_path)
        stage.broker.kill()
        stage.broker.start()
        assert stage.broker.wait_answering()
        _check(stage, file)
