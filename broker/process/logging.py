"""Logging, configured in one function at the start of a process.

An event is a past-tense identifier (``segment_sealed``), its keys are words of the glossary. On a
terminal it is a coloured line, elsewhere one JSON object per line, always on stderr: stdout belongs
to commands. Values under a key that names a secret are never written, a ``Secret`` has no text, and
a traceback shows no values of local variables. On a terminal no text, of whoever it is, has control
characters.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final, Literal, TextIO

import structlog

from broker.model.harmless import harmless

_SECRET_WORDS: Final = ("password", "secret", "token", "credential", "authorization", "creds")
_REDACTED: Final = "***"
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_TRACEBACKS: Final = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
_TEXTS_OF_LINES: Final = ("exception", "stack")  # tracebacks
# Libraries log a lot: only their warnings and errors are written.
_FOREIGN_LEVEL: Final = logging.WARNING


def configure_logging(
    *,
    level: str = "info",
    format: Literal["auto", "console", "json"] = "auto",  # noqa: A002  # the configuration's key
    stream: TextIO | None = None,
) -> None:
    """Configure structlog and the standard library's logging for the whole process.

    ``auto`` is ``console`` on a terminal and ``json`` elsewhere. May be called again.
    """
    sink = sys.stderr if stream is None else stream
    console = format == "console" or (format == "auto" and sink.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _redact,
    ]
    rendering: list[Any] = (
        [
            _make_harmless,
            structlog.dev.ConsoleRenderer(
                colors=sink.isatty(), exception_formatter=_write_traceback
            ),
        ]
        if console
        else [
            structlog.processors.ExceptionRenderer(_TRACEBACKS),
            structlog.processors.JSONRenderer(default=str),
        ]
    )
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(sink),
        cache_logger_on_first_use=False,  # loggers made at import time follow this configuration
    )
    _route_standard_logging(sink, shared, rendering)


def _route_standard_logging(sink: TextIO, shared: list[Any], rendering: list[Any]) -> None:
    """Write the libraries' log lines in the same form, so that a program can parse every line."""
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
    )
    handler = logging.StreamHandler(sink)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_FOREIGN_LEVEL)


def _redact(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Replace the value of every key that names a secret."""
    for key in event:
        if any(word in key.lower() for word in _SECRET_WORDS):
            event[key] = _REDACTED
    return event


def _make_harmless(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Escape the control characters of every text: the renderer escapes only some texts.

    JSON needs no such step, because it escapes them itself.
    """
    return {harmless(key, kept=""): _harmless_value(key, one) for key, one in event.items()}


def _harmless_value(key: str, value: Any) -> Any:
    if key == "exc_info":  # of _write_traceback
        return value
    if isinstance(value, str):
        return harmless(value, kept="\n\t" if key in _TEXTS_OF_LINES else "")
    shown = repr(value)  # which the renderer writes, and in which nested texts are escaped
    return value if shown.isprintable() else harmless(shown, kept="")


def _write_traceback(sink: TextIO, exc_info: Any) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    sink.write(harmless(text.getvalue()))
