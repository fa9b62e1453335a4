"""The keys of encrypted streams, by a broker's configuration."""

from __future__ import annotations

import os

from broker.config import EncryptionConfig
from broker.ports.system import Clock
from broker.runtime.stream_keys import StreamKeys


def stream_keys(config: EncryptionConfig, clock: Clock) -> StreamKeys | None:
    """Return the keys of encrypted streams; None without a key provider.

    No key is read before a stream needs one.
    """
    if not config.provider:
        return None
    from broker.keys.derive import derived  # noqa: PLC0415 - most brokers have no key provider
    from broker.keys.opening import open_provider  # noqa: PLC0415
    from broker.keys.xaes import Xaes256Gcm  # noqa: PLC0415

    provider = open_provider(
        config.provider,
        keyring_file=config.keyring_file,
        kms_key_id=config.kms_key_id,
        environ=os.environ,
    )
    return StreamKeys(clock, provider, lambda key: Xaes256Gcm(derived(key, "batches")))
