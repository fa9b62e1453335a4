"""Options that several commands share, declared once so that their names and help are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from headwater.cli.parsing import parse_duration_ms, parse_size

_T = TypeVar("_T")


def checked(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """Turn a parser's ValueError into typer's error about the option."""

    def parser(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parser


ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="HEADWATER_SERVER",
        metavar="ADDRESS",
        help="Server to use: host:port or grpc://host:port, a cluster's with commas, or the data "
        "directory of a running `headwater up`. Without it: ./headwater-data, then 127.0.0.1:7410.",
        show_default=False,
    ),
]
NatsOption = Annotated[
    str | None,
    typer.Option(
        "--nats",
        envvar="HEADWATER_NATS_URL",
        metavar="URL",
        help="NATS server to publish to; by default that of the running `headwater up`.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")]
LeaseOption = Annotated[
    int,
    typer.Option(
        "--lease",
        metavar="DURATION",
        parser=checked(parse_duration_ms),
        help="How long the server keeps every record and file that the cut needs.",
    ),
]


def size_option(*names: str, help: str) -> object:  # noqa: A002  # typer's own word
    """Return an option that takes a size such as 8MiB and yields bytes."""
    return typer.Option(*names, metavar="SIZE", parser=checked(parse_size), help=help)


def duration_option(*names: str, help: str) -> object:  # noqa: A002  # typer's own word
    """Return an option that takes a duration such as 5m and yields milliseconds."""
    return typer.Option(*names, metavar="DURATION", parser=checked(parse_duration_ms), help=help)
