"""Options without pydantic, where none is needed.

typer hands the value of every option to pydantic, whose import takes a tenth of a short command. A
text needs no conversion, and neither does an option that was not given. If a release of typer does
not have the names that are used here, it does as it always would.
"""

from __future__ import annotations

from typing import Any, Final

import typer
import typer.core

try:
    from typer._coercion import RuntimeParam, build_runtime_param
except ImportError:  # another release of typer
    RuntimeParam = None  # type: ignore[assignment,misc]

_HALVES: Final = ("\ud800", "\udfff")  # of characters; Python makes them of what is no UTF-8


def without_pydantic() -> None:
    """Let the commands of this process take texts as they are, and convert what else is given."""
    if RuntimeParam is not None:
        typer.core.build_runtime_param = _kept  # type: ignore[attr-defined,assignment]


def _kept(described: Any) -> Any:
    return _Kept(parameter_info=described.parameter_info, annotation=described.annotation)


if RuntimeParam is not None:

    class _Kept(RuntimeParam):
        """Takes a text as it is; everything else is converted by typer."""

        def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
            if self.annotation is not str or self.parameter_info.parser is not None:
                usual = build_runtime_param(param.type_descriptor)
                return usual.coerce(value, param=param, ctx=ctx)
            if not isinstance(value, str) or any(_HALVES[0] <= one <= _HALVES[1] for one in value):
                raise typer.BadParameter("this is no UTF-8 text", ctx=ctx, param=param)
            return value
