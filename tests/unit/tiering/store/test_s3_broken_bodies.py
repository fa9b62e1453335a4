"""A connection to S3 that breaks within the body of an answer, found with a faulty proxy."""

from __future__ import annotations

import io
from typing import Any

import pytest
from urllib3.exceptions import ProtocolError

from broker.codec.checksum import crc32c
from broker.errors import RemoteTierUnavailableError
from tiering.store.location import StoreConfig
from tiering.store.s3 import S3Store


class BreakingClient:
    """Gives botocore's answers; the first ones break off."""

    def __init__(self, breaks: int) -> None:
        self._breaks = breaks

    def get_object(self, **arguments: Any) -> dict[str, Any]:
        """Return an object, as botocore does."""
        self._answer()
        return {"Body": io.BytesIO(b"bytes"), "ContentLength": 5}

    def put_object(self, **arguments: Any) -> dict[str, Any]:
        """Store nothing."""
        self._answer()
        return {}

    def _answer(self) -> None:
        if self._breaks:
            self._breaks -= 1
            raise ProtocolError("Connection broken", ConnectionResetError(104, "reset"))


def _store(breaks: int) -> S3Store:
    return S3Store(StoreConfig.from_env("s3://bucket/table", {}), BreakingClient(breaks))


def test_a_request_whose_answer_breaks_off_is_sent_again() -> None:
    """Such as the refusal of an object that is not there, which has a body, too."""
    assert _store(1).get("key") == b"bytes"


def test_a_store_whose_answers_break_off_is_unavailable() -> None:
    """A typed error, at each kind of request; nothing is claimed of the object."""
    with pytest.raises(RemoteTierUnavailableError, match="Connection broken"):
        _store(100).get("key")
    with pytest.raises(RemoteTierUnavailableError, match="Connection broken"):
        _store(1).put_if_absent("key", b"bytes", crc32c=crc32c(b"bytes"))
