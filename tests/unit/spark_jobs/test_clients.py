"""Which client of a broker a process of Spark uses."""

from __future__ import annotations

import pytest

from spark_jobs.clients import client_of

ADDRESS = "grpc://127.0.0.1:9"


def test_calls_of_one_user_share_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its address, and by that of the environment; no request is made."""
    monkeypatch.setenv("HEADWATER_SERVER", ADDRESS)
    assert client_of(ADDRESS) is client_of(ADDRESS)
    assert client_of(None) is client_of(None)
    assert client_of(client_of(None)) is client_of(None)


@pytest.mark.parametrize(
    ("name", "value"),
    [("HEADWATER_SERVER", "grpc://127.0.0.2:9"), ("HEADWATER_TOKEN", "hw1_other")],
)
def test_another_address_or_token_in_the_environment_is_another_client(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """A notebook may change them; the token of the user before is not used any more."""
    monkeypatch.setenv("HEADWATER_SERVER", ADDRESS)
    before = client_of(None)
    monkeypatch.setenv(name, value)
    assert client_of(None) is not before
