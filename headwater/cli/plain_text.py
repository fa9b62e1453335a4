"""Keeps the import of pydantic out of short commands.

typer converts the value of every option with pydantic, whose import takes a tenth of the time of a
short command. A text needs no conversion, and neither does an option that was not given. If a
release of typer does not have the names that are used here, its own conversion stays.
"""

from __future__ import annotations

from typing import Any, Final

import typer
import typer.core

try:
    from typer._coercion import RuntimeParam, build_runtime_param
except ImportError:  # another release of typer
    RuntimeParam = None  # type: ignore[assignment,misc]

_SURROGATES: Final = ("\ud800", "\udfff")  # by which Python represents bytes that are not UTF-8


def without_pydantic() -> None:
    """Let the commands of this process take texts as they are, and convert only other values."""
    if RuntimeParam is not None:
        typer.core.build_runtime_param = _text_parameter  # type: ignore[attr-defined,assignment]


def _text_parameter(described: Any) -> Any:
    return _TextParameter(parameter_info=described.parameter_info, annotation=described.annotation)


if RuntimeParam is not None:

    class _TextParameter(RuntimeParam):
        """Takes a text as it is; everything else is converted by typer."""

        def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
            if self.annotation is not str or self.parameter_info.parser is not None:
                usual = build_runtime_param(param.type_descriptor)
                return usual.coerce(value, param=param, ctx=ctx)
            first, last = _SURROGATES
            if not isinstance(value, str) or any(first <= one <= last for one in value):
                raise typer.BadParameter("the text is not valid UTF-8", ctx=ctx, param=param)
            return value
