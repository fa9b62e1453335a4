"""`headwater keyring`: keys for brokers, in a file for its owner only; and their check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.config import BrokerConfig, EncryptionConfig, LakeConfig, NatsConfig, load
from broker.errors import InvalidConfigError
from broker.keys.local_keys import EnvironmentKeys, KeyringFile
from broker.model.stream import StreamConfig
from headwater.cli.broker_check import checked_needs
from headwater.cli.stream import _say_created

Run = Callable[..., Any]
CONTEXT = {"headwater:stream": "s"}


def test_a_keyring_is_made_and_grows(run: Run, tmp_path: Path) -> None:
    """The newest key wraps, the earlier one stays; nobody else can read the file."""
    path = tmp_path / "keys" / "keyring.toml"
    assert run("keyring", "new", str(path), "--name", "one").exit_code == 0
    name, wrapped = KeyringFile(path).wrap(b"k" * 32, CONTEXT)
    assert name == "one"
    assert path.stat().st_mode & 0o777 == 0o600
    told = run("keyring", "new", str(path), "--name", "two")
    assert told.exit_code == 0
    assert path.read_text().split('"')[-2] not in told.output
    assert KeyringFile(path).wrap(b"k" * 32, CONTEXT)[0] == "two"
    assert KeyringFile(path).unwrap("one", wrapped, CONTEXT) == b"k" * 32
    assert [one.name for one in path.parent.iterdir()] == ["keyring.toml"]


def test_a_name_is_given_once_and_is_one_word(run: Run, tmp_path: Path) -> None:
    """A refused command leaves the file as it was."""
    path = tmp_path / "keyring.toml"
    run("keyring", "new", str(path), "--name", "one")
    before = path.read_bytes()
    for name in ("one", "two words", 'quo"te', "a:b"):
        assert run("keyring", "new", str(path), "--name", name).exit_code != 0
        assert path.read_bytes() == before


def test_a_bare_key_is_for_the_environment(run: Run) -> None:
    """Printed alone, so that a shell can take it."""
    told = run("keyring", "new", "-").stdout.strip()
    assert EnvironmentKeys({"HEADWATER_ENCRYPTION_KEY": told}).wrap(b"k" * 32, CONTEXT)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"provider": "vault"}, "file, environment or aws-kms"),
        ({"provider": "file"}, "encryption.keyring_file need each other"),
        ({"provider": "aws-kms"}, "encryption.kms_key_id need each other"),
        ({"keyring_file": "k"}, "encryption.keyring_file need each other"),
        ({"provider": "environment", "kms_key_id": "k"}, "encryption.kms_key_id need each other"),
    ],
)
def test_a_provider_and_its_setting_need_each_other(facts: dict[str, str], told: str) -> None:
    """A setting without effect would look like encryption."""
    with pytest.raises(InvalidConfigError, match=told):
        EncryptionConfig(**facts)


def test_the_variable_with_the_key_is_no_setting() -> None:
    """It stays in the environment, where nothing prints it."""
    environ = {"HEADWATER_ENCRYPTION_PROVIDER": "environment", "HEADWATER_ENCRYPTION_KEY": "x"}
    assert load(None, environ).encryption == EncryptionConfig(provider="environment")


def test_the_check_of_a_broker_wraps_a_key(run: Run, tmp_path: Path) -> None:
    """As the creation of an encrypted stream would; the error says what to do."""
    path = tmp_path / "keyring.toml"
    encryption = EncryptionConfig(provider="file", keyring_file=str(path))
    config = BrokerConfig(nats=NatsConfig(url=""), lake=LakeConfig(uri=""), encryption=encryption)

    def found() -> str:
        needs = {one.what: one for one in checked_needs(config, java=False)}
        error = needs["encryption keys"].error
        return "" if error is None else error.message

    assert "cannot read the keyring" in found()
    run("keyring", "new", str(path))
    assert found() == ""
    path.chmod(0o644)
    assert "chmod 600" in found()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, False),
        ({"encryption": "xaes-256-gcm"}, True),
        ({"encryption": "xaes-256-gcm", "tiering": False}, False),
        ({"encryption": "xaes-256-gcm", "table_encryption": "ciphertext"}, False),
    ],
)
def test_who_encrypts_the_log_alone_hears_of_the_table(
    settings: dict[str, Any], told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody finds plain text in a bucket by chance."""
    config = StreamConfig(subject="s", **settings)
    _say_created(SimpleNamespace(name="s", table_name="s", config=config), None)
    assert ("--table-encryption" in capsys.readouterr().err) is told
