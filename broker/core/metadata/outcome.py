"""The result of applying a command: the next state, and a reply or a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker.core.metadata.state import MetadataState
from broker.errors import HeadwaterError


@dataclass(frozen=True, slots=True)
class Rejected:
    """The command changed nothing; its proposer gets this error."""

    error: HeadwaterError


Reply = Mapping[str, Any]
Applied = tuple[MetadataState, Reply | Rejected]
