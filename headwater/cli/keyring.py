"""``headwater keyring``: the file of a broker's key provider `file`."""

from __future__ import annotations

import base64
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from broker.errors import InvalidConfigError
from headwater.cli import console

_KEY_BYTES: Final = 32

app = typer.Typer(
    no_args_is_help=True,
    help="Make the keyring of brokers that encrypt streams.",
    rich_markup_mode="rich",
)


@app.callback()
def keyring() -> None:
    """Make the keyring of brokers that encrypt streams."""


@app.command()
def new(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The keyring, or - to print a bare key.")
    ],
    *,
    name: Annotated[
        str | None, typer.Option(help="The key's name; default: today's date.", show_default=False)
    ] = None,
) -> None:
    """Add a new random key to a keyring, for new data keys; a new keyring is made for its owner.

    The earlier keys stay in the file. Copy it to every broker, and keep a copy where the brokers'
    disks are not: without it, encrypted records are lost. `-` prints a key for the variable
    HEADWATER_ENCRYPTION_KEY.

    [bold]Examples[/bold]

      headwater keyring new /etc/headwater/keyring.toml
      export HEADWATER_ENCRYPTION_KEY=$(headwater keyring new -)
    """
    key = base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()
    if file == "-":
        console.say(key)
        return
    chosen = name or datetime.now(tz=UTC).strftime("%Y-%m-%d")
    _write(Path(file), chosen, key)
    console.say(f"{console.plain(file)} has the key [bold]{console.plain(chosen)}[/bold].")


def _write(path: Path, name: str, key: str) -> None:
    """Replace the file by one that has this key, too, and names it first."""
    from broker.keys.local_keys import read_keyring
    from broker.keys.wrapping import is_key_name

    if not is_key_name(name):
        raise InvalidConfigError(f"{name!r} does not name a key: it must be one printable word")
    present = read_keyring(path)[1] if path.exists() else {}
    if name in present:
        raise InvalidConfigError(f"{path} has a key named {name!r}: choose another with --name")
    lines = [f'current = "{name}"', "", "[keys]"]
    lines += [f'"{one}" = "{value}"' for one, value in [*present.items(), (name, key)]]
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(fresh, "x", opener=lambda at, flags: os.open(at, flags, 0o600)) as file:
            file.write("\n".join(lines) + "\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as cause:
        fresh.unlink(missing_ok=True)
        raise InvalidConfigError(f"cannot write {path}: {cause.strerror}") from cause
