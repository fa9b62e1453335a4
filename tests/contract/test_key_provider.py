"""What every key provider must do: a keyring file, the environment, and AWS KMS (moto)."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.codec.schema import FILE_SCHEMA
from broker.errors import EncryptionKeyError, KeyProviderUnavailableError
from broker.keys.aws_kms import AwsKms
from broker.keys.local_keys import EnvironmentKeys, KeyringFile
from broker.keys.opening import check_provider, open_provider
from broker.model.data_key import DataKey
from broker.ports.encryption import KeyProvider
from headwater.local.embedded import start_moto
from simkit.tier.source import make_stream
from tiering.store.table_keys import TableKeys

KEY = base64.b64encode(bytes(range(32))).decode()
CONTEXT = {"headwater:stream": "3f0c", "headwater:version": "1"}
DATA_KEY = bytes(range(32, 64))


@pytest.fixture(scope="module")
def kms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start one moto for the module; give its address."""
    with start_moto(tmp_path_factory.mktemp("moto"), bucket="unused") as moto:
        yield moto.address


def _use_kms(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", address)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.fixture(
    params=["file", "environment", pytest.param("aws-kms", marks=pytest.mark.integration)]
)
def provider(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> KeyProvider:
    """A provider of each kind, with one key."""
    if request.param == "file":
        path = tmp_path / "keyring.toml"
        path.write_text(f'current = "k"\n[keys]\nk = "{KEY}"\n')
        path.chmod(0o600)
        return open_provider("file", keyring_file=str(path), kms_key_id="", environ={})
    if request.param == "environment":
        environ = {"HEADWATER_ENCRYPTION_KEY": f"k:{KEY}"}
        return open_provider("environment", keyring_file="", kms_key_id="", environ=environ)
    _use_kms(request.getfixturevalue("kms"), monkeypatch)
    made = boto3.client("kms").create_key()["KeyMetadata"]["KeyId"]
    return open_provider("aws-kms", keyring_file="", kms_key_id=made, environ={})


def test_a_data_key_comes_back(provider: KeyProvider) -> None:
    """Under the name that was returned with it; the wrapped key does not show it."""
    name, wrapped = provider.wrap(DATA_KEY, CONTEXT)
    assert DATA_KEY not in wrapped
    assert provider.unwrap(name, wrapped, CONTEXT) == DATA_KEY
    assert name == check_provider(provider)
    assert provider.kind in ("file", "environment", "aws-kms")


def test_a_key_is_wrapped_by_the_one_that_is_named(provider: KeyProvider) -> None:
    """One that is not there is refused, and not replaced by the provider's own."""
    name, _ = provider.wrap(DATA_KEY, CONTEXT)
    assert provider.wrap(DATA_KEY, CONTEXT, by=name)[0] == name
    absent = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(EncryptionKeyError, match=absent):
        provider.wrap(DATA_KEY, CONTEXT, by=absent)


def test_a_wrapped_key_belongs_to_its_context(provider: KeyProvider) -> None:
    """Another stream's wrapped key, put into this stream's metadata, is refused."""
    name, wrapped = provider.wrap(DATA_KEY, CONTEXT)
    with pytest.raises(EncryptionKeyError) as caught:
        provider.unwrap(name, wrapped, {**CONTEXT, "headwater:stream": "other"})
    assert not caught.value.retriable


def test_a_changed_wrapped_key_is_refused(provider: KeyProvider) -> None:
    """The last byte is part of what is authenticated."""
    name, wrapped = provider.wrap(DATA_KEY, CONTEXT)
    with pytest.raises(EncryptionKeyError):
        provider.unwrap(name, wrapped[:-1] + bytes([wrapped[-1] ^ 1]), CONTEXT)


def test_a_key_that_is_not_there_is_named(provider: KeyProvider) -> None:
    """The error says which key is missing, and is not retried."""
    _, wrapped = provider.wrap(DATA_KEY, CONTEXT)
    absent = "00000000-0000-4000-8000-000000000000"
    with pytest.raises(EncryptionKeyError, match=absent) as caught:
        provider.unwrap(absent, wrapped, CONTEXT)
    assert not caught.value.retriable


def test_a_file_of_a_table_comes_back(provider: KeyProvider) -> None:
    """Parquet takes the name of the wrapping key, whatever signs it has: an ARN has colons."""
    stream = make_stream()
    context = {"headwater:stream": stream.uuid, "headwater:version": "1"}
    name, wrapped = provider.wrap(DATA_KEY, context)
    text = base64.b64encode(wrapped).decode()
    key = DataKey(version=1, provider=provider.kind, wrapping_key=name, wrapped=text, created_us=0)
    rows = FILE_SCHEMA.empty_table()
    written = pa.BufferOutputStream()
    pq.write_table(
        rows, written, encryption_properties=TableKeys(provider).for_writing(stream.uuid, key)
    )
    reading = TableKeys(provider).for_reading()
    assert pq.read_table(written.getvalue(), decryption_properties=reading).equals(rows)


def test_no_text_of_a_provider_has_a_key(provider: KeyProvider) -> None:
    """Neither its repr nor what its attributes print."""
    told = repr(provider) + repr(vars(provider))
    assert KEY not in told
    assert repr(bytes(range(32)))[2:-1] not in told


@pytest.mark.integration
def test_an_alias_of_kms_may_move_on(kms: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was wrapped names the key itself, so the alias may mean another one later."""
    _use_kms(kms, monkeypatch)
    client = boto3.client("kms")
    first, second = (client.create_key()["KeyMetadata"]["KeyId"] for _ in range(2))
    client.create_alias(AliasName="alias/moving", TargetKeyId=first)
    provider = AwsKms("alias/moving")
    name, wrapped = provider.wrap(DATA_KEY, CONTEXT)
    client.update_alias(AliasName="alias/moving", TargetKeyId=second)
    assert first in name
    assert provider.unwrap(name, wrapped, CONTEXT) == DATA_KEY
    assert second in provider.wrap(DATA_KEY, CONTEXT)[0]
    named, wrapped = provider.wrap(DATA_KEY, CONTEXT, by=first)
    assert first in named
    assert provider.unwrap(named, wrapped, CONTEXT) == DATA_KEY


def test_a_service_that_does_not_answer_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is an error of its own, so that a caller waits and no operator is called."""
    _use_kms("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(KeyProviderUnavailableError) as caught:
        AwsKms("any").wrap(DATA_KEY, CONTEXT)
    assert caught.value.retriable
    assert caught.value.provider == "aws-kms"


def test_the_kinds_are_those_of_the_configuration() -> None:
    """Each class says the word that the configuration has for it."""
    assert [one.kind for one in (KeyringFile, EnvironmentKeys, AwsKms)] == [
        "file",
        "environment",
        "aws-kms",
    ]
