"""Makes what vends credentials for tables, if the configuration names a role for readers."""

from __future__ import annotations

from collections.abc import Callable

from broker.config import BrokerConfig
from broker.model.stream import Stream
from broker.model.table_credentials import StorePlace
from broker.runtime.api.table_credentials import VendedCredentials
from broker.runtime.broker import Broker


def vended_credentials(
    config: BrokerConfig,
    broker: Broker,
    key_snapshot: Callable[[Stream], str | None],
    place: StorePlace,
) -> VendedCredentials | None:
    """Return None without ``lake.reader_role_arn``; makes no request."""
    lake = config.lake
    if not lake.reader_role_arn:
        return None
    # Imported late: most brokers vend no credentials, and start sooner without the library.
    from broker.adapters.access.aws_sts import AwsSts  # noqa: PLC0415

    return VendedCredentials(
        broker.streams.get,
        broker.cold.table_state,
        key_snapshot,
        AwsSts(
            lake.reader_role_arn,
            ttl_s=lake.reader_ttl_s,
            url=lake.reader_sts_url,
            region=place.region,
        ),
        role_arn=lake.reader_role_arn,
        place=place,
    )
