"""Sessions of a role by AWS STS, or by a service that speaks as it does. Uses boto3.

The broker's own credentials come as AWS's tools take them; with them it needs sts:AssumeRole for
the role. The keys of a session are in no log line and in no error.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import boto3.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from broker.errors import RemoteTierUnavailableError
from broker.model.secret import Secret
from broker.model.table_credentials import TemporaryKeys

_TIMEOUT_S: Final = 3
_ATTEMPTS: Final = 2


class AwsSts:
    """Implements ``RoleSessions``. Any thread."""

    def __init__(
        self, role_arn: str, *, ttl_s: int, url: str = "", region: str | None = None
    ) -> None:
        """Ask ``url``, or where AWS's tools would ask; makes no request."""
        self._role_arn = role_arn
        self._ttl_s = ttl_s
        self._url = url or None
        self._region = region
        self._lock = threading.Lock()
        self._made: Any = None

    def open(self, name: str, policy: str) -> TemporaryKeys:
        """See ``RoleSessions.open``."""
        try:
            told = self._client().assume_role(
                RoleArn=self._role_arn,
                RoleSessionName=name,
                Policy=policy,
                DurationSeconds=self._ttl_s,
            )["Credentials"]
        except ClientError as cause:
            error = cause.response.get("Error", {})
            code = str(error.get("Code", ""))
            raise RemoteTierUnavailableError(
                f"STS gives no session of {self._role_arn}: {code}: {error.get('Message', '')}",
                code=code,
            ) from cause
        except (BotoCoreError, ResponseParserError, ValueError) as cause:
            raise RemoteTierUnavailableError(f"STS cannot be asked: {cause}") from cause
        return TemporaryKeys(
            access_key_id=str(told["AccessKeyId"]),
            secret_access_key=Secret(told["SecretAccessKey"]),
            session_token=Secret(told["SessionToken"]),
            expires_us=round(told["Expiration"].timestamp() * 1_000_000),
        )

    def _client(self) -> Any:
        with self._lock:  # sessions of boto3 are not made for several threads; clients are
            if self._made is None:
                self._made = boto3.session.Session(region_name=self._region).client(
                    "sts",
                    endpoint_url=self._url,
                    config=Config(
                        connect_timeout=_TIMEOUT_S,
                        read_timeout=_TIMEOUT_S,
                        retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
                    ),
                )
            return self._made
