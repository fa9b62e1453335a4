"""The policy of readers' credentials, by the documented meaning of its parts, and session names."""

from __future__ import annotations

import fnmatch
import json
import re
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.access.table_policy import (
    POLICY_CHARS_MAX,
    partition_of,
    reading_policy,
    session_name,
)
from broker.errors import InvalidRequestError

HISTORY: Final = "s3://lake/base/default/shop"
SNAPSHOT: Final = f"{HISTORY}__latest"


def may(policy: str, action: str, key: str) -> bool:
    """Evaluate a policy as AWS documents it: ``*`` in a resource and in StringLike is any text."""
    for one in json.loads(policy)["Statement"]:
        resources: Any = one["Resource"]
        asked = "arn:aws:s3:::lake" if action == "s3:ListBucket" else f"arn:aws:s3:::lake/{key}"
        prefixes = one.get("Condition", {}).get("StringLike", {}).get("s3:prefix", ["*"])
        if (
            one["Effect"] == "Allow"
            and one["Action"] == action
            and any(
                fnmatch.fnmatchcase(asked, shape)
                for shape in ([resources] if isinstance(resources, str) else resources)
            )
            and any(fnmatch.fnmatchcase(key, shape) for shape in prefixes)
        ):
            return True
    return False


@pytest.mark.parametrize("action", ["s3:GetObject", "s3:ListBucket"])
def test_a_reader_reads_below_its_tables_and_nowhere_else(action: str) -> None:
    """Neither tables whose names begin alike nor what is above; nothing but reading."""
    policy = reading_policy([HISTORY, SNAPSHOT])
    allowed = {
        key
        for key in (
            "base/default/shop/_delta_log/0.json",
            "base/default/shop__latest/partition=0/x.parquet",
            "base/default/shop2/_delta_log/0.json",
            "base/default/shop__latest-12345678/x",
            "base/default/",
            "base/",
            "",
            "other/default/shop/x",
        )
        if may(policy, action, key)
    }
    assert allowed == {
        "base/default/shop/_delta_log/0.json",
        "base/default/shop__latest/partition=0/x.parquet",
    }
    asked = {one["Action"] for one in json.loads(policy)["Statement"]}
    assert asked == {"s3:GetObject", "s3:ListBucket"}


def test_without_a_key_snapshot_its_folder_is_closed() -> None:
    """It may become the table of another stream."""
    assert not may(reading_policy([HISTORY]), "s3:GetObject", "base/default/shop__latest/x")


@pytest.mark.parametrize("sign", ["*", "?", "$", "{", "}", "\n"])
def test_a_sign_that_means_more_in_a_policy_is_refused(sign: str) -> None:
    """A prefix ``*`` would open the whole bucket."""
    with pytest.raises(InvalidRequestError, match="no credentials can be bound"):
        reading_policy([f"s3://lake/a{sign}b/default/shop"])


def test_a_policy_that_aws_would_not_take_is_refused() -> None:
    """With the number, before STS is asked."""
    with pytest.raises(InvalidRequestError, match=str(POLICY_CHARS_MAX)):
        reading_policy([f"s3://lake/{'p' * 1000}/default/shop"])


def test_the_part_of_aws_is_that_of_the_role() -> None:
    """China and the government's have their own; a compatible store has none."""
    assert partition_of("arn:aws-cn:iam::1:role/r") == "aws-cn"
    assert partition_of("arn:minio:iam:::role/r") == partition_of("r") == "aws"
    assert '"arn:aws-cn:s3:::lake"' in reading_policy([HISTORY], partition="aws-cn")


def test_a_session_has_the_name_of_its_principal() -> None:
    """As CloudTrail shows it; a name that AWS would not take is changed."""
    assert session_name("billing@example.com") == "billing@example.com"
    changed = session_name("#owner")
    assert changed.startswith("-owner-")
    assert session_name(changed) != changed, "somebody's name may be what another one becomes"


@given(st.lists(st.text(max_size=100), min_size=2, max_size=2, unique=True))
def test_session_names_are_taken_and_tell_principals_apart(names: list[str]) -> None:
    """Whatever the names are: nobody can be taken for somebody else in CloudTrail."""
    made = [session_name(one) for one in names]
    assert all(re.fullmatch(r"[\w+=,.@-]{2,64}", one, re.ASCII) for one in made)
    assert made[0] != made[1]
