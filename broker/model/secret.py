"""A value that must not be shown: a password, a token, a key.

It has no text form. ``repr``, ``str`` and ``format`` give ``***``, also in logs and tracebacks;
pickling raises TypeError, and so does ``json`` without a ``default``. Only :meth:`Secret.reveal`
returns the value. Call it where a library takes the value, and do not keep the result.
"""

from __future__ import annotations

import hmac
from typing import Final, NoReturn, Self

SHOWN: Final = "***"  # in place of a secret


class Secret:
    """A text that only :meth:`reveal` shows. Two secrets are equal if their texts are."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Hide ``text``. Raises TypeError if it is no text; the error does not show it."""
        if not isinstance(text, str):
            raise TypeError(f"a secret is a text, not of type {type(text).__name__}")
        self._text = text

    @classmethod
    def of(cls, value: Secret | str | None) -> Secret | None:
        """Return ``value`` hidden; None stays None."""
        return value if value is None or isinstance(value, Secret) else cls(value)

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def __eq__(self, other: object) -> bool:
        """Compare in a time that does not depend on the texts."""
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return SHOWN

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(SHOWN, spec)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret is not pickled: it would be readable where the pickle goes")
