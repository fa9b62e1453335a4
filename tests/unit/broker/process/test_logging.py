"""Log lines of every library parse alike, and hold no secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from broker.model.secret import Secret
from broker.process.logging import configure_logging


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    """Give the process its logging back."""
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    yield
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)
    structlog.reset_defaults()


def _lines(sink: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in sink.getvalue().splitlines()]


def test_an_event_is_one_json_object_off_a_terminal() -> None:
    """Event, level, time and facts are keys of one object on one line."""
    sink = io.StringIO()
    configure_logging(stream=sink)
    structlog.get_logger().info("segment_sealed", stream="orders", partition=3)
    (line,) = _lines(sink)
    assert line["event"] == "segment_sealed"
    assert (line["level"], line["stream"], line["partition"]) == ("info", "orders", 3)
    assert str(line["timestamp"]).endswith("Z")


def test_a_logger_made_before_follows_the_configuration() -> None:
    """Modules make their logger when they are imported, before anything is configured."""
    logger = structlog.get_logger("early")
    sink = io.StringIO()
    configure_logging(stream=sink, level="warning")
    logger.info("not_shown")
    logger.warning("disk_full")
    assert [line["event"] for line in _lines(sink)] == ["disk_full"]


@pytest.mark.parametrize("key", ["password", "nats_token", "AWS_SECRET_ACCESS_KEY", "creds_file"])
def test_secrets_are_not_written(key: str) -> None:
    """A value under a key that names a secret does not reach the log."""
    sink = io.StringIO()
    configure_logging(stream=sink)
    structlog.get_logger().info("connected", **{key: "hunter2"})
    assert "hunter2" not in sink.getvalue()


def test_libraries_share_the_form() -> None:
    """The standard library's warnings come as the same JSON; its chatter does not come."""
    sink = io.StringIO()
    configure_logging(stream=sink)
    logging.getLogger("botocore").info("chatter")
    logging.getLogger("botocore").warning("slow answer")
    assert [line["event"] for line in _lines(sink)] == ["slow answer"]


def test_an_exception_is_structured() -> None:
    """A traceback is part of the object, not lines after it."""
    sink = io.StringIO()
    configure_logging(stream=sink)
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger().exception("turn_failed")
    (line,) = _lines(sink)
    assert "broken" in json.dumps(line["exception"])


def test_console_is_for_people() -> None:
    """Asked for, the console form is used also off a terminal."""
    sink = io.StringIO()
    configure_logging(stream=sink, format="console")
    structlog.get_logger().info("stream_created", stream="orders")
    assert "stream_created" in sink.getvalue()
    assert "stream=orders" in sink.getvalue()


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_shows_no_local_variables(form: Literal["json", "console"]) -> None:
    """Local variables may hold what no key names, for example credentials of a store."""
    sink = io.StringIO()
    configure_logging(stream=sink, format=form)

    def open_store(key: str) -> None:
        raise ValueError(f"cannot open with {len(key)} characters")

    try:
        open_store("2retnuh"[::-1])  # source lines are shown, so the line has another text
    except ValueError:
        structlog.get_logger().exception("lake_failed")
        logging.getLogger("botocore").exception("failed")
    assert "cannot open" in sink.getvalue()
    assert "hunter2" not in sink.getvalue()


def test_a_secret_in_a_fact_is_not_written() -> None:
    """Also under a key that does not name it, inside other values."""
    sink = io.StringIO()
    configure_logging(stream=sink)
    structlog.get_logger().info(
        "connected", config={"x": [Secret("hunter2")]}, one=Secret("hunter2")
    )
    assert "hunter2" not in sink.getvalue()


class _Odd:
    """A value whose own text is not escaped."""

    def __repr__(self) -> str:
        return f"odd {_EVIL}"


_EVIL = "g\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202e"


@pytest.mark.parametrize(
    "facts",
    [
        {"group": _EVIL},
        {"reason": f"a blank {_EVIL}"},
        {_EVIL: 1},
        {"names": [_EVIL, {_EVIL: (_EVIL,)}]},
        {"error": ValueError(_EVIL)},
        {"odd": _Odd()},
        {"raw": _EVIL.encode()},
        {"line": f"x\n2026-11-28 [info] false_line{_EVIL}"},
    ],
    ids=["text", "blank", "key", "nested", "error", "object", "bytes", "line"],
)
def test_a_terminal_gets_no_control_characters(facts: dict[str, object]) -> None:
    """Names of tenants are in the log, and a terminal would obey their escape sequences."""
    sink = io.StringIO()
    configure_logging(stream=sink, format="console")
    structlog.get_logger().info("group_member_expelled", **facts)
    text = sink.getvalue()
    assert text.removesuffix("\n").isprintable()
    assert "group_member_expelled" in text


def test_events_tracebacks_and_other_libraries_have_none_either() -> None:
    """Only the line ends of tracebacks stay."""
    sink = io.StringIO()
    configure_logging(stream=sink, format="console")
    structlog.get_logger().info(f"event {_EVIL}", stack=f"one\ntwo {_EVIL}")
    logging.getLogger("library").warning("foreign %s\nend", _EVIL)
    try:
        raise ValueError(_EVIL)
    except ValueError:
        structlog.get_logger().error("failed", exc_info=True)
        logging.getLogger("library").exception("failed, too")
    text = sink.getvalue()
    assert text.replace("\n", "").isprintable()
    assert text.count("PWNED") == 5
    assert text.splitlines()[2].startswith("two")
    assert text.count("Traceback") == 2
