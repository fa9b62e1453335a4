"""NATS subjects: which subjects a pattern covers, and whose requests they may carry. Pure.

A pattern is a subject in which ``*`` stands for one word and a last ``>`` for one or more words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SUBJECT_BYTES_MAX: Final = 255
INBOX: Final = "_INBOX"  # first word of the subjects on which clients wait for replies


def matches(pattern: str, subject: str) -> bool:
    """Tell whether a message on ``subject``, which has no wildcards, reaches ``pattern``."""
    return overlap(pattern, subject)


def is_pattern(text: str) -> bool:
    """Tell whether a text is a subject or a pattern that NATS takes, and not too long."""
    words = text.split(".")
    return (
        text.isascii()
        and text.isprintable()
        and " " not in text
        and 0 < len(text) <= SUBJECT_BYTES_MAX
        and all(words)
        and ">" not in words[:-1]
    )


def is_literal(subject: str) -> bool:
    """Tell whether a message can be published on this text: words with dots, no wildcard."""
    return (
        subject.isprintable()
        and " " not in subject
        and all(word not in ("", "*", ">") for word in subject.split("."))
    )


def overlap(first: str, second: str) -> bool:
    """Tell whether some subject reaches both patterns."""
    ours, theirs = first.split("."), second.split(".")
    for place, word in enumerate(ours):
        if place == len(theirs):
            return False
        if ">" in (word, theirs[place]):
            return True
        if word != theirs[place] and "*" not in (word, theirs[place]):
            return False
    return len(ours) == len(theirs)


def covers(pattern: str, wanted: str) -> bool:
    """Tell whether every subject that reaches ``wanted``, itself a pattern, reaches ``pattern``."""
    ours, theirs = pattern.split("."), wanted.split(".")
    for place, word in enumerate(ours):
        if place == len(theirs):
            return False
        if word == ">":
            return True
        if theirs[place] == ">" or word not in ("*", theirs[place]):
            return False
    return len(ours) == len(theirs)


def any_overlap(first: Iterable[str], second: Iterable[str]) -> bool:
    """Tell whether a pattern of one side overlaps a pattern of the other."""
    theirs = list(second)
    return any(overlap(one, other) for one in first for other in theirs)


def is_shared(pattern: str) -> bool:
    """Tell whether the pattern reaches requests and replies of clients that have no part in it.

    That is so if its first word is a wildcard, or is one that every client uses: ``_INBOX`` of
    replies, or a word that begins with ``$`` (NATS's own, such as ``$SRV``).
    """
    first = pattern.partition(".")[0]
    return first in ("*", ">", INBOX) or first.startswith("$")


def replication_subjects(cluster: str) -> tuple[str, ...]:
    """Return the subjects on which the brokers of a cluster replicate over NATS."""
    return (
        f"{cluster}.*.*.replicate",
        f"{cluster}.*.*.offset",
        f"{cluster}.notify",  # a stream on it would hear the next ones by its partitions
        f"{cluster}.notify.*",
    )
