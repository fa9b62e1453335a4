"""``headwater stream rotate-key``: a new data key for an encrypted stream."""

from __future__ import annotations

from typing import Any

from broker.model.stream import Stream
from headwater.cli import console
from headwater.cli.discovery import connect, find_server
from headwater.cli.options import JsonOption, ServerOption, StreamArgument
from headwater.cli.parsing import format_time_us


def rotate_key(
    name: StreamArgument, *, server: ServerOption = None, json: JsonOption = False
) -> None:
    """Give an encrypted stream a new data key, for what is written from now on.

    Stored records are not rewritten; they stay readable, because the earlier data keys are kept.
    All of them are encrypted anew by the present key of the brokers' key provider: once every
    stream was rotated, an earlier key of the provider can be removed.

    [bold]Examples[/bold]

      headwater stream rotate-key payments
      for s in $(headwater stream list --json | jq -r 'select(.data_keys).name'); do
        headwater stream rotate-key "$s"; done
    """
    with connect(find_server(server)) as client:
        stream = client.rotate_key(name)
    newest = stream.data_keys[-1]
    if json:
        console.json_line({"stream": name, "version": newest.version, "provider": newest.provider,
                           "wrapping_key": newest.wrapping_key})  # fmt: skip
    else:
        console.say(
            f"[bold]{console.plain(name)}[/bold] is encrypted with version {newest.version} of its "
            f"data key from now on, wrapped by {console.plain(newest.wrapping_key)} ("
            f"{newest.provider})."
        )


def data_key_facts(stream: Stream) -> list[tuple[str, Any]]:
    """Return what `stream describe` shows of an encrypted stream's newest data key."""
    if not stream.data_keys:
        return []
    newest = stream.data_keys[-1]
    return [
        ("data key", f"version {newest.version}, of {format_time_us(newest.created_us)}"),
        ("wrapped by", f"{newest.wrapping_key} ({newest.provider})"),
    ]
