"""Asks every broker by itself of a deleted stream, before and while the stream's table is deleted.

A deletion is in the metadata of a majority at once. Another broker may apply it later, and ships to
the table until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from broker.errors import InvalidRequestError, UnavailableError
from broker.model.ids import StreamUuid
from broker.model.tiering import StreamRemains
from headwater.client.client import Client

_ASK_TIMEOUT_MS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionTold:
    """What the brokers of a cluster know of a stream's deletion."""

    present: bool  # some broker's metadata has the stream
    deleted: bool  # some broker's metadata has its deletion: so the cluster has
    waiting_for: tuple[str, ...]  # the others that do not, that ship, or that do not answer

    def require_deleted(self, stream_uuid: StreamUuid) -> None:
        """Refuse to delete a table whose stream was not deleted by this cluster.

        Raises:
            InvalidRequestError: the stream exists, or this cluster does not know of it.
        """
        if self.deleted:
            return
        if self.present:
            raise InvalidRequestError(
                f"the stream with uuid {stream_uuid} exists: `headwater stream delete` with "
                "--purge-table deletes it and its table",
                stream_uuid=stream_uuid,
            )
        raise InvalidRequestError(
            f"this cluster does not remember that it deleted a stream with uuid {stream_uuid}: "
            "nothing was deleted. Ask a broker of the stream's own cluster (--server); if there is "
            "none any more, delete the folder with the tools of the store",
            stream_uuid=stream_uuid,
        )


def ask_brokers(client: Client, name: str, stream_uuid: StreamUuid) -> DeletionTold:
    """Ask every broker of the cluster once. Blocks.

    Raises:
        AccessError: this client may not delete and erase the stream.
        InvalidRequestError: a broker of an older build does not know the question.
        UnavailableError: no broker answers.
    """
    body = {"name": name, "stream_uuid": stream_uuid}
    places = client.call("brokers", {})
    if len(places) <= 1:
        return told_by({"the broker": _remains(client.call("stream_remains", body))})
    with ThreadPoolExecutor(len(places)) as pool:
        answers = list(pool.map(lambda place: _ask(place, body), places))
    return told_by({str(place["broker"]): one for place, one in zip(places, answers, strict=True)})


def told_by(answers: Mapping[str, StreamRemains | None]) -> DeletionTold:
    """Sum up the answers, by broker; None: it did not answer. Pure."""
    waiting_for = [
        f"{broker} ({reason})"
        for broker, one in answers.items()
        if (reason := _reason_to_wait(one)) is not None
    ]
    return DeletionTold(
        present=any(one is not None and one.present for one in answers.values()),
        deleted=any(one is not None and one.deleted for one in answers.values()),
        waiting_for=tuple(waiting_for),
    )


def _reason_to_wait(one: StreamRemains | None) -> str | None:
    if one is None:
        return "does not answer"
    if one.shipping:
        return "may be writing to the table"
    return None if one.deleted else "does not know of the deletion yet"


def _ask(place: Mapping[str, Any], body: Mapping[str, Any]) -> StreamRemains | None:
    if place["flight"] is None or not place["alive"]:
        return None
    try:
        with Client(str(place["flight"])) as other:
            return _remains(other.call("stream_remains", body, timeout_ms=_ASK_TIMEOUT_MS))
    except UnavailableError:
        return None


def _remains(rows: list[dict[str, Any]]) -> StreamRemains:
    (row,) = rows
    return StreamRemains(
        present=bool(row["present"]), deleted=bool(row["deleted"]), shipping=bool(row["shipping"])
    )
