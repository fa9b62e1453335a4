"""Put a planted bug in the place of one step of the product, for the length of a `with`.

What is replaced stands in its owner, a class or a module, under that very name, and comes back as
it was: a static or a class method as one. A name that an owner only inherits, or that the product
no longer has, is refused: a mutant that changes nothing would pass for one that nobody notices. So
is a function that takes other arguments: its crash would be noticed, and not the bug.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final

_PRODUCT: Final = ("broker", "headwater", "spark_jobs", "tiering")

Mutant = Callable[[], AbstractContextManager[None]]  # its docstring is the bug


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let an attribute of ``owner`` be another one."""
    original = vars(owner)[name]
    home = str(getattr(owner, "__module__", owner.__name__))
    if home.partition(".")[0] in _PRODUCT and not _is_called_alike(original, value):
        raise TypeError(f"{owner.__name__}.{name} takes other arguments than what replaces it")
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _is_called_alike(original: Any, other: Any) -> bool:
    """Tell whether a function takes the positional arguments that the original takes."""
    if not (inspect.isfunction(original) and inspect.isfunction(other)):
        return True
    (least, most), (others_least, others_most) = map(_positional, (original, other))
    return others_least <= least and others_most >= most


def _positional(function: Callable[..., Any]) -> tuple[float, float]:
    """Return how many positional arguments a function takes at least and at most."""
    kinds = inspect.Parameter
    found = inspect.signature(function).parameters.values()
    plain = [
        one for one in found if one.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    least = sum(one.default is kinds.empty for one in plain)
    if any(one.kind is kinds.VAR_POSITIONAL for one in found):
        return least, float("inf")
    return least, len(plain)


@contextmanager
def together(*parts: AbstractContextManager[None]) -> Iterator[None]:
    """Let all of ``parts`` hold at once."""
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(part)
        yield
