"""Where a cut's table is, and by which credentials this process reads it.

Credentials of the environment count first: a key pair or a profile. Without them the broker is
asked. If it vends none, the usual chain of AWS's tools is left, an instance's role for example.
"""

from __future__ import annotations

from dataclasses import replace

from broker.model.cut import Cut
from broker.model.ids import StreamUuid
from headwater.client import Client
from headwater.client.table_credentials import vended_by
from tiering.store.location import StoreConfig


def table_location(client: Client, cut: Cut) -> StoreConfig:
    """Return the location of a cut's table with the settings to reach it. May block.

    Raises:
        AccessError: this client may not consume the stream any more.
        RemoteTierUnavailableError: the broker cannot get credentials now.
        InvalidConfigError: a variable of the environment is not valid.
    """
    return location_of(client, cut.table_uri, cut.stream, cut.stream_uuid)


def location_of(client: Client, uri: str, stream: str, stream_uuid: StreamUuid) -> StoreConfig:
    """Return the location of a stream's table, as :func:`table_location` does for a cut."""
    found = StoreConfig.from_env(uri)
    if found.kind == "local" or found.names_credentials:
        return found
    source = vended_by(client.address, stream, stream_uuid)
    if source is None:
        return found
    place = source.place
    return replace(
        found,
        endpoint=found.endpoint or place.endpoint,
        region=found.region or place.region,
        path_style=place.path_style if found.endpoint is None else found.path_style,
        vended=source,
    )
