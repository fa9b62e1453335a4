"""A release is signed by a key that is known, and a changed file is found."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from projectfiles import ROOT
from tools import signing
from tools.signing import SigningError

WHEEL = "headwater-0.2.0-py3-none-any.whl"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Return a folder with the files of a release."""
    folder = tmp_path / "dist"
    folder.mkdir()
    for name in (WHEEL, "headwater-0.2.0.tar.gz", "headwater-0.2.0.cdx.json"):
        (folder / name).write_bytes(name.encode())
    return folder


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """Return an SSH key without a passphrase."""
    return _key(tmp_path / "key")


@pytest.fixture
def signers(tmp_path: Path, key: Path) -> Path:
    """Return a file of signers that allows the key."""
    public = key.with_suffix(".pub").read_text()
    path = tmp_path / "signers"
    path.write_text(f'headwater namespaces="{signing.NAMESPACE}" {public}')
    return path


def test_each_file_is_signed_and_openssh_alone_can_check_it(
    release: Path, key: Path, signers: Path
) -> None:
    """With the commands of docs/releasing.md, which need nothing of ours."""
    signature = signing.sign(release, key, signers)
    assert signature.name == "SHA256SUMS.sig"
    text = (ROOT / "docs/releasing.md").read_text("utf-8")
    (command,) = [line.strip() for line in text.splitlines() if "ssh-keygen -Y verify" in line]
    command = command.replace("release_signers", str(signers))
    subprocess.run(["/bin/sh", "-euc", command], cwd=release, check=True, capture_output=True)
    signing.verify(release, signers)


@pytest.mark.parametrize("changed", [WHEEL, "SHA256SUMS", "SHA256SUMS.sig"])
def test_a_changed_file_is_found(release: Path, key: Path, signers: Path, changed: str) -> None:
    """Also one that is as long as the signed one."""
    signing.sign(release, key, signers)
    path = release / changed
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)
    with pytest.raises(SigningError):
        signing.verify(release, signers)


def test_a_missing_file_and_a_missing_signature_are_found(
    release: Path, key: Path, signers: Path
) -> None:
    """Nothing is taken for signed because it is not there."""
    with pytest.raises(SigningError, match="cannot be read"):
        signing.verify(release, signers)
    signing.sign(release, key, signers)
    (release / WHEEL).unlink()
    with pytest.raises(SigningError, match="not the file that was signed"):
        signing.verify(release, signers)


def test_a_key_that_is_not_a_signer_s_leaves_no_signature(
    release: Path, tmp_path: Path, signers: Path
) -> None:
    """And a signer's signature for another purpose is none of a release."""
    with pytest.raises(SigningError, match="add its public line"):
        signing.sign(release, _key(tmp_path / "other"), signers)
    assert not (release / "SHA256SUMS.sig").exists()


def test_an_empty_folder_is_not_signed(tmp_path: Path, key: Path, signers: Path) -> None:
    """It says which command builds a release."""
    with pytest.raises(SigningError, match="make release-check"):
        signing.sign(tmp_path, key, signers)


def _key(path: Path) -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(command, check=True)
    return path
