"""The key provider that a configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from broker.errors import EncryptionKeyError, InvalidConfigError
from broker.keys.local_keys import EnvironmentKeys, KeyringFile
from broker.ports.encryption import KeyProvider


def open_provider(
    kind: str, *, keyring_file: str, kms_key_id: str, environ: Mapping[str, str]
) -> KeyProvider:
    """Return the provider. No key is read and no service is asked.

    ``kind`` and its setting were checked when the configuration was read.
    """
    match kind:
        case "file":
            return KeyringFile(Path(keyring_file))
        case "environment":
            return EnvironmentKeys(environ)
        case "aws-kms":
            from broker.keys.aws_kms import AwsKms  # noqa: PLC0415 - the others need no boto3

            return AwsKms(kms_key_id)
    raise InvalidConfigError(f"no key provider is named {kind!r}")


def check_provider(provider: KeyProvider) -> str:
    """Return the name of the key that wraps new data keys, after a key was wrapped and unwrapped.

    Raises:
        EncryptionKeyError, KeyProviderUnavailableError: a stream could not be encrypted now.
    """
    context = {"headwater:stream": "check"}
    probe = bytes(32)
    name, wrapped = provider.wrap(probe, context)
    if provider.unwrap(name, wrapped, context) != probe:
        raise EncryptionKeyError(f"the key {name!r} does not return what it encrypted")
    return name
