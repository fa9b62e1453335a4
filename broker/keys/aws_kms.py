"""The key provider AWS KMS, by boto3: the wrapping key never leaves the service.

Region, credentials and endpoint come as AWS's tools take them: ``AWS_REGION``,
``AWS_ENDPOINT_URL_KMS``, a profile, a role. A broker needs kms:Encrypt and kms:Decrypt for
the key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import boto3
import botocore.exceptions
from botocore.config import Config

from broker.errors import EncryptionKeyError, KeyProviderUnavailableError

_TIMEOUT_S: Final = 3
_ATTEMPTS: Final = 2
_T = TypeVar("_T")

# What the service says about a key that somebody must give back or allow. All else may pass.
_REFUSALS: Final = frozenset(
    {
        "AccessDeniedException", "DisabledException", "IncorrectKeyException",
        "InvalidCiphertextException", "InvalidGrantTokenException", "InvalidKeyUsageException",
        "KMSInvalidStateException", "NotFoundException", "ValidationException",
        "UnrecognizedClientException", "InvalidClientTokenId", "ExpiredTokenException",
        "InvalidSignatureException", "IncompleteSignature", "MissingAuthenticationToken",
    }
)  # fmt: skip


class AwsKms:
    """Implements ``KeyProvider``. Any thread."""

    kind = "aws-kms"

    def __init__(self, key_id: str) -> None:
        """Wrap new data keys with ``key_id``: a key id, an ARN or an alias."""
        self._key_id = key_id
        self._lock = threading.Lock()
        self._made: Any = None

    def wrap(self, key: bytes, context: Mapping[str, str], *, by: str = "") -> tuple[str, bytes]:
        """See ``KeyProvider.wrap``: the name is the key's ARN, so an alias may move on."""
        key_id = by or self._key_id
        told = self._ask(
            key_id,
            lambda kms: kms.encrypt(KeyId=key_id, Plaintext=key, EncryptionContext=dict(context)),
        )
        return str(told["KeyId"]), bytes(told["CiphertextBlob"])

    def unwrap(self, name: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """See ``KeyProvider.unwrap``."""
        told = self._ask(
            name,
            lambda kms: kms.decrypt(
                KeyId=name, CiphertextBlob=wrapped, EncryptionContext=dict(context)
            ),
        )
        return bytes(told["Plaintext"])

    def _ask(self, key_id: str, call: Callable[[Any], _T]) -> _T:
        try:
            return call(self._client())
        except botocore.exceptions.ClientError as cause:
            code = str(cause.response.get("Error", {}).get("Code", ""))
            told = f"AWS KMS, key {key_id!r}: {code}: {_message(cause)}"
            kind = EncryptionKeyError if code in _REFUSALS else KeyProviderUnavailableError
            raise kind(told, provider=self.kind, wrapping_key=key_id) from cause
        except (
            botocore.exceptions.NoCredentialsError,
            botocore.exceptions.NoRegionError,
            botocore.exceptions.ProfileNotFound,
            botocore.exceptions.ParamValidationError,
        ) as cause:
            raise EncryptionKeyError(
                f"AWS KMS cannot be asked: {cause}", provider=self.kind
            ) from cause
        except botocore.exceptions.BotoCoreError as cause:
            raise KeyProviderUnavailableError(
                f"AWS KMS does not answer: {cause}", provider=self.kind
            ) from cause

    def _client(self) -> Any:
        with self._lock:  # sessions of boto3 are not made for several threads; clients are
            if self._made is None:
                self._made = boto3.session.Session().client(
                    "kms",
                    config=Config(
                        connect_timeout=_TIMEOUT_S,
                        read_timeout=_TIMEOUT_S,
                        retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
                    ),
                )
            return self._made


def _message(cause: Any) -> str:
    return str(cause.response.get("Error", {}).get("Message", "")) or "it gave no reason"
