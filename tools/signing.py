"""Signs the files of a release with an SSH key: ``make release-sign KEY=FILE``.

    python -m tools.signing KEY        # dist/SHA256SUMS and its signature, dist/SHA256SUMS.sig

The signature is OpenSSH's (``ssh-keygen -Y``), so whoever checks it needs no tool of ours: see
docs/releasing.md. Keys that may sign stand in ``docs/release_signers``. A signature that this file
does not allow is removed again, so a release cannot be signed by a key that nobody could know.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.release import released_files

ROOT: Final = Path(__file__).resolve().parents[1]
SIGNERS: Final = ROOT / "docs/release_signers"
NAMESPACE: Final = "headwater-release"  # a signature for another purpose is none of a release
IDENTITY: Final = "headwater"  # the name of every signer in the file
_SUMS: Final = "SHA256SUMS"


class SigningError(RuntimeError):
    """The files cannot be signed, or their signature is not valid."""


def sign(folder: Path, key: Path, signers: Path = SIGNERS) -> Path:
    """Write the checksums of a built release and sign them; return the path of the signature.

    Raises:
        SigningError: there is nothing to sign, or the key is not one of the signers'.
    """
    files = released_files(folder)
    if not files:
        raise SigningError(f"{folder} has no files of a release: run `make release-check` first")
    sums = folder / _SUMS
    sums.write_text("".join(f"{_sha256(path)}  {path.name}\n" for path in files), "ascii")
    signature = folder / f"{_SUMS}.sig"
    signature.unlink(missing_ok=True)
    _ssh_keygen("sign", ["-f", str(key), str(sums)])
    try:
        verify(folder, signers)
    except SigningError as cause:
        signature.unlink()
        raise SigningError(
            f"the key {key} is not in {signers}: add its public line, commit it, and sign again"
        ) from cause
    return signature


def verify(folder: Path, signers: Path = SIGNERS) -> None:
    """Check the signature of a folder's checksums, and each file that they name.

    Raises:
        SigningError: the signature is missing or not valid, or a file is missing or another one.
    """
    sums = folder / _SUMS
    try:
        text = sums.read_bytes()
    except OSError as cause:
        raise SigningError(f"{sums} cannot be read: {cause}") from cause
    arguments = ["-f", str(signers), "-I", IDENTITY, "-s", f"{sums}.sig"]
    _ssh_keygen("verify", arguments, text)
    for line in text.decode("ascii").splitlines():
        expected, _, name = line.partition("  ")
        path = folder / name
        if not path.is_file() or _sha256(path) != expected:
            raise SigningError(f"{path} is not the file that was signed")


def _ssh_keygen(verb: str, arguments: Sequence[str], text: bytes = b"") -> None:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise SigningError("ssh-keygen is not installed: it comes with OpenSSH")
    command = [program, "-Y", verb, "-n", NAMESPACE, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    if done.returncode:
        raise SigningError((done.stdout + done.stderr).decode(errors="replace").strip())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: Sequence[str]) -> int:
    """Sign what is in ``dist/``; return the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("say which SSH key signs: make release-sign KEY=~/.ssh/id_ed25519\n")
        return 2
    try:
        signature = sign(ROOT / "dist", Path(arguments[0]).expanduser())
    except SigningError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{signature.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
