"""Where a cut's table is, and by which credentials and keys this process reads it.

Credentials of the environment count first: a key pair or a profile. Without them the broker is
asked. If it vends none, the usual chain of AWS's tools is left, an instance's role for example.

A process with a key provider also asks how the stream's data keys are wrapped now. Files of an
encrypted table name the wrapping of their time, and a rotation lets the provider's old key go.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from broker.errors import AccessError, UnavailableError, UnknownStreamError
from broker.model.cut import Cut
from broker.model.data_key import StreamDataKeys
from broker.model.ids import StreamUuid
from headwater.client import Client
from headwater.client.table_credentials import vended_by
from tiering.store.location import StoreConfig

_log: Final = logging.getLogger("headwater.read")


def table_location(client: Client, cut: Cut) -> StoreConfig:
    """Return the location of a cut's table with the settings to reach it. May block.

    Raises:
        AccessError: this client may not consume the stream any more.
        RemoteTierUnavailableError: the broker cannot get credentials now.
        InvalidConfigError: a variable of the environment is not valid.
    """
    return location_of(client, cut.table_uri, cut.stream, cut.stream_uuid)


def location_of(
    client: Client, uri: str, stream: str, stream_uuid: StreamUuid, *, keyring_file: str = ""
) -> StoreConfig:
    """Return the location of a stream's table, as :func:`table_location` does for a cut.

    ``keyring_file`` is used in place of the environment's key provider.
    """
    found = StoreConfig.from_env(uri)
    if keyring_file:
        found = replace(found, key_provider="file", keyring_file=keyring_file, kms_key_id="")
    found = with_data_keys(client, found, stream, stream_uuid)
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


def with_data_keys(
    client: Client, found: StoreConfig, stream: str, stream_uuid: StreamUuid
) -> StoreConfig:
    """Return a location with the data keys of its stream as they are wrapped now. May block.

    It is unchanged without a key provider, and if the broker does not tell: then each file is read
    by the wrapping that it names.
    """
    if not found.key_provider:
        return found
    try:
        told = client.stream(stream)
    except (AccessError, UnavailableError, UnknownStreamError) as error:
        _log.info("data_keys_not_told stream=%s: %s", stream, error)
        return found
    if told.uuid != stream_uuid or not told.data_keys:
        return found
    return replace(found, data_keys=StreamDataKeys(stream_uuid, told.data_keys))
