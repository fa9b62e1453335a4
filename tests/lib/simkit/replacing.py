"""Put a planted bug in the place of one step of the product, for the length of a `with`.

What is replaced stands in its owner, a class or a module, under that very name, and comes back as
it was: a static or a class method as one. A name that an owner only inherits, or that the product
no longer has, is refused: a mutant that changes nothing would pass for one that nobody notices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

Mutant = Callable[[], AbstractContextManager[None]]  # its docstring is the bug


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let an attribute of ``owner`` be another one."""
    original = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def together(*parts: AbstractContextManager[None]) -> Iterator[None]:
    """Let all of ``parts`` hold at once."""
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(part)
        yield
