"""Every error has a name, a message, an exit code, and a hint where one helps."""

from __future__ import annotations

import pytest

from broker import errors
from broker.errors import (
    CommitTimeoutError,
    EncryptionKeyError,
    HeadwaterError,
    IneligibleReplicaError,
    InvalidConfigError,
    NotEnoughReplicasError,
    OverloadedError,
)
from headwater.cli.failures import explain

ABSTRACT = {"HeadwaterError"}


@pytest.mark.parametrize("name", sorted(set(errors.leaves()) - ABSTRACT))
def test_every_error_class_has_an_exit_code(name: str) -> None:
    """No class of broker/errors.py falls through to the code of another kind."""
    failure = explain(errors.leaves()[name]("what happened"))
    assert failure is not None
    assert failure.name == name
    assert failure.message == "what happened"
    assert failure.exit_code in (1, 2, 3)


@pytest.mark.parametrize(
    ("name", "exit_code", "hint"),
    [
        ("UnknownStreamError", 2, "stream create"),
        ("RecordTooLargeError", 2, "--record-bytes"),
        ("GapError", 1, "headwater verify"),
        ("ObjectMissingError", 1, "Nothing was deleted"),
        ("RemoteTierUnavailableError", 3, "endpoint"),
        ("UnavailableError", 3, "headwater up"),
        ("StaleLeaderEpochError", 3, "again"),
        ("UnfencedStoreError", 2, "If-None-Match"),
    ],
)
def test_hints_say_what_to_do(name: str, exit_code: int, hint: str) -> None:
    """The nearest class with a hint decides."""
    failure = explain(errors.leaves()[name]("m"))
    assert failure is not None
    assert failure.exit_code == exit_code
    assert hint in (failure.hint or "")


def test_a_retry_that_was_given_up_has_the_hint_of_its_cause() -> None:
    """What to do about a full disk, not about leaders that nobody misses."""
    known = explain(CommitTimeoutError("no acknowledgement", cause="DiskFullError"))
    other = explain(CommitTimeoutError("no acknowledgement", cause="NotLeaderError"))
    assert known is not None
    assert other is not None
    assert (known.name, known.exit_code) == ("CommitTimeoutError", 3)
    assert "Free disk space" in (known.hint or "")
    assert "headwater cluster status" in (other.hint or "")


def test_files_and_packages() -> None:
    """A file that is not there and a package that is not installed are not our defects."""
    missing = explain(FileNotFoundError(2, "No such file or directory", "orders.jsonl"))
    assert missing is not None
    assert missing.message == "orders.jsonl: No such file or directory"
    package = explain(ModuleNotFoundError("No module named 'pyspark'", name="pyspark"))
    assert package is not None
    assert "headwater[spark]" in (package.hint or "")


def test_defects_are_not_explained_away() -> None:
    """Anything else is for the top level to call an internal error."""
    assert explain(KeyError("x")) is None


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (CommitTimeoutError, "`headwater cluster status`"),
        (NotEnoughReplicasError, "`headwater cluster status`"),
        (IneligibleReplicaError, "`headwater cluster partitions`"),
        (OverloadedError, "again"),
        (EncryptionKeyError, "docs/encryption.md"),
    ],
)
def test_a_server_that_answers_is_not_asked_whether_it_runs(
    kind: type[HeadwaterError], words: str
) -> None:
    """The hint of an error is about that error, not about its group."""
    failure = explain(kind("x"))
    assert failure is not None
    assert words in (failure.hint or "")
    assert "running" not in (failure.hint or "")


def test_a_wrong_configuration_file_is_not_sent_to_the_help() -> None:
    """Keys of the file are in docs/operations.md; `--help` lists none of them."""
    failure = explain(InvalidConfigError("unknown key flight.prot"))
    assert failure is not None
    assert "docs/operations.md" in (failure.hint or "")
