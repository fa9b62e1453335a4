"""Stories of ``make crash``: a real broker is killed, its disk forgets something, it starts again.

The outcome is exact, or the loss is named; so after more records, a flush and one more kill.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from broker.errors import CorruptDataError, HeadwaterError
from crashkit.running import CampaignError
from crashkit.stage import Stage, Witness, staged

_STREAM: Final = "forgets"
_FLUSH_MS: Final = 30_000


def _gone(log: Path, older: Path) -> None:
    shutil.rmtree(log)


def _emptied(log: Path, older: Path) -> None:
    for one in log.iterdir():
        one.unlink()


def _older(log: Path, older: Path) -> None:
    shutil.rmtree(log)
    shutil.copytree(older, log)


def _active(log: Path, older: Path) -> None:
    max(log.glob("*.log")).unlink()
    (log / "recovery").unlink()


STORIES: Final[dict[str, Callable[[Path, Path], None]]] = {
    "lost partition folder": _gone,
    "emptied partition folder": _emptied,
    "older partition folder": _older,
    "active segment and recovery point gone": _active,
}


def tell(name: str, folder: Path) -> str:
    """Run one story; return what came of it.

    Raises:
        CampaignError: records that were acknowledged are gone, and nobody said so.
    """
    with staged(folder) as stage:
        stream = stage.client.create_stream(_STREAM, subject="forgets", segment_bytes_max=64 * 1024)
        witness = Witness(stage.client, _STREAM, seed=name, subject="forgets")
        log = stage.broker.data_dir / "streams" / stream.uuid / "0"
        with stage.client.producer(_STREAM) as producer:
            witness.put(producer, 100)
            _copied(log, folder / "older")
            witness.put(producer, 100)
        stage.broker.kill()
        STORIES[name](log, folder / "older")
        said = [_judged(stage, witness)]
        said.append(_judged(stage, witness))
    return ", then ".join(said)


def _judged(stage: Stage, witness: Witness) -> str:
    """Start, read, publish, flush and read again, kill."""
    stage.broker.start()
    stage.broker.wait_answering()  # with a damaged partition it does not call itself ready
    said = [_read(witness)]
    for step in (_publish, _flush):
        try:
            step(stage, witness)
        except HeadwaterError as error:
            said.append(type(error).__name__)
    said.append(_read(witness))
    stage.broker.kill()
    return "/".join(said)


def _read(witness: Witness) -> str:
    try:
        verdict, _ = witness.judge()
    except CorruptDataError as error:
        return f"named ({type(error).__name__})"
    if not verdict.ok:
        raise CampaignError(f"silent: {verdict}")
    return "exact"


def _publish(stage: Stage, witness: Witness) -> None:
    with stage.client.producer(_STREAM) as producer:
        witness.put(producer, 1)


def _flush(stage: Stage, witness: Witness) -> None:
    stage.client.tier_flush(_STREAM, timeout_ms=_FLUSH_MS)


def _copied(log: Path, target: Path) -> None:
    while True:
        try:
            shutil.copytree(log, target)
        except shutil.Error:
            shutil.rmtree(target)
        else:
            return
