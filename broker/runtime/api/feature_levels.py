"""Raises the feature level of the metadata, when somebody uses what needs it."""

from __future__ import annotations

from broker.core.metadata.commands import SetFeatureLevel
from broker.runtime.metadata.metadata_log import WaitingMetadata


def raise_level(metadata: WaitingMetadata, wanted: int) -> None:
    """Let the cluster take commands that older builds do not know; once, and for good. Blocks.

    Raises:
        FeatureLevelError: a registered broker runs a build that does not know the level.
        UnavailableError: the controllers did not commit it.
    """
    level = metadata.state.feature_level
    if level < wanted:
        metadata.propose(SetFeatureLevel(expected=level, level=wanted))
