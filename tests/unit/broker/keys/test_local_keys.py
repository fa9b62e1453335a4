"""Keyring file and environment: which keys they accept, and that no error tells a key."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from broker.errors import EncryptionKeyError
from broker.keys.local_keys import EnvironmentKeys, KeyringFile

KEY = base64.b64encode(bytes(range(32))).decode()
OTHER = base64.b64encode(bytes(range(1, 33))).decode()
CONTEXT = {"headwater:stream": "u", "headwater:version": "1"}


def keyring(path: Path, text: str, mode: int = 0o600) -> KeyringFile:
    """Write a keyring and return its provider."""
    path.write_text(text)
    path.chmod(mode)
    return KeyringFile(path)


def test_a_key_that_was_added_is_used_at_once(tmp_path: Path) -> None:
    """The file is read for each call; the earlier key still opens what it wrapped."""
    file = tmp_path / "keyring.toml"
    ring = keyring(file, f'current = "a"\n[keys]\na = "{KEY}"\n')
    name, wrapped = ring.wrap(b"k" * 32, CONTEXT)
    assert name == "a"
    keyring(file, f'current = "b"\n[keys]\na = "{KEY}"\nb = "{OTHER}"\n')
    assert ring.wrap(b"k" * 32, CONTEXT)[0] == "b"
    assert ring.wrap(b"k" * 32, CONTEXT, by="a")[0] == "a"
    assert ring.unwrap("a", wrapped, CONTEXT) == b"k" * 32


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        (f'current = "a"\n[keys]\na = "{KEY}"\n', 0o640, "chmod 600"),
        (f'current = "a"\n[keys]\na = "{KEY}"\n', 0o604, "chmod 600"),
        (f'current = "b"\n[keys]\na = "{KEY}"\n', 0o600, "`current` must name"),
        (f'[keys]\na = "{KEY}"\n', 0o600, "`current` must name"),
        ('current = "a"\nkeys = 7\n', 0o600, "needs a table"),
        ('current = "a"\n[keys]\na = 7\n', 0o600, "not a text"),
        (f'current = "a b"\n[keys]\n"a b" = "{KEY}"\n', 0o600, "not one word"),
        (f'current = "a"\n[keys]\na = "{KEY[:20]}"\n', 0o600, "not a key"),
        (f'current = "a"\n[keys]\na = "{KEY}x"\n', 0o600, "not a key"),
        (f'current = "a"\n[keys]\na = "{KEY}\n', 0o600, "not TOML"),
        (f'current = "a"\n[keys]\na = {KEY}\n', 0o600, "not TOML"),
    ],
)
def test_a_keyring_that_cannot_be_used_says_why(
    tmp_path: Path, text: str, mode: int, told: str
) -> None:
    """The error says what to do, and has no part of a key."""
    ring = keyring(tmp_path / "keyring.toml", text, mode)
    with pytest.raises(EncryptionKeyError, match=told) as caught:
        ring.wrap(b"k" * 32, CONTEXT)
    assert KEY[:8] not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_keyring_that_is_not_there_says_so(tmp_path: Path) -> None:
    """The path is in the error."""
    with pytest.raises(EncryptionKeyError, match=r"cannot read the keyring .*absent\.toml"):
        KeyringFile(tmp_path / "absent.toml").wrap(b"k" * 32, CONTEXT)


def test_the_environment_has_several_keys_of_which_the_first_wraps() -> None:
    """A name of its own for each; without one, the key's fingerprint."""
    before = EnvironmentKeys({"HEADWATER_ENCRYPTION_KEY": KEY})
    name, wrapped = before.wrap(b"k" * 32, CONTEXT)
    assert name.startswith("env-")
    after = EnvironmentKeys({"HEADWATER_ENCRYPTION_KEY": f"new:{OTHER},{KEY}"})
    assert after.wrap(b"k" * 32, CONTEXT)[0] == "new"
    assert after.unwrap(name, wrapped, CONTEXT) == b"k" * 32
    other = EnvironmentKeys({"HEADWATER_ENCRYPTION_KEY": OTHER})
    with pytest.raises(EncryptionKeyError, match=f"has no key named '{name}'"):
        other.unwrap(name, wrapped, CONTEXT)


@pytest.mark.parametrize("size", [16, 24, 32])
def test_liftbridges_variable_is_taken(size: int) -> None:
    """The characters are the key, as Liftbridge takes them."""
    keys = EnvironmentKeys({"LIFTBRIDGE_ENCRYPTION_KEY": "x" * size})
    name, wrapped = keys.wrap(b"k" * 32, CONTEXT)
    assert keys.unwrap(name, wrapped, CONTEXT) == b"k" * 32


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, "neither HEADWATER_ENCRYPTION_KEY nor LIFTBRIDGE_ENCRYPTION_KEY is set"),
        ({"LIFTBRIDGE_ENCRYPTION_KEY": "short"}, "16, 24 or 32 characters, not 5"),
        ({"HEADWATER_ENCRYPTION_KEY": "short"}, "is not a key"),
        ({"HEADWATER_ENCRYPTION_KEY": f"a:{KEY},a:{OTHER}"}, "a name of its own"),
        ({"HEADWATER_ENCRYPTION_KEY": f"a b:{KEY}"}, "a name of its own"),
    ],
)
def test_an_environment_that_cannot_be_used_says_why(environ: dict[str, str], told: str) -> None:
    """When a key is needed, not before; and without its text."""
    with pytest.raises(EncryptionKeyError, match=told) as caught:
        EnvironmentKeys(environ).wrap(b"k" * 32, CONTEXT)
    assert "short" not in str(caught.value)
