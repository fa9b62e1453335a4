"""Raises the feature level of the metadata at the first use of a feature that needs it."""

from __future__ import annotations

from contextlib import suppress

from broker.core.metadata.commands import SetFeatureLevel
from broker.errors import FeatureLevelError
from broker.runtime.metadata.metadata_log import WaitingMetadata


def raise_level(metadata: WaitingMetadata, wanted: int) -> None:
    """Let the metadata hold commands that older builds cannot read. Blocks.

    A level is never lowered: after this, older builds cannot join the cluster. Nothing happens if
    the level is ``wanted`` or higher.

    Raises:
        FeatureLevelError: a registered broker runs a build that does not know the level.
        UnavailableError: the controllers did not commit it.
    """
    level = metadata.state.feature_level
    if level < wanted:
        metadata.propose(SetFeatureLevel(expected=level, level=wanted))


def raise_level_if_known(metadata: WaitingMetadata, wanted: int) -> None:
    """Raise the level as soon as every registered broker knows it. Blocks.

    For rules that mend a feature which all builds have: until then the feature works as before.

    Raises UnavailableError: the controllers did not commit it.
    """
    state = metadata.state
    if state.feature_level < wanted and all(
        one.features_min <= wanted <= one.features_max for one in state.brokers.values()
    ):
        with suppress(FeatureLevelError):  # another broker has registered meanwhile
            raise_level(metadata, wanted)
