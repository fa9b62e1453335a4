"""What credentials for a stream's tables may do: the session policy, and the session's name. Pure.

Of an assumed role and a session policy AWS allows what both allow. So whatever the role may do, a
reader may read the objects below these tables' folders, and list them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any, Final

from broker.errors import InvalidRequestError

POLICY_CHARS_MAX: Final = 2048  # of AWS, for a policy in plain text
_FOLDER: Final = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,62})/([^*?${}\x00-\x1f]+)")
_NAME_MAX: Final = 64  # AWS takes 2 to 64 of these characters
_NOT_OF_NAME: Final = re.compile(r"[^A-Za-z0-9_=,.@-]")
_DIGEST_CHARS: Final = 16
_WITH_DIGEST: Final = re.compile(rf"-[0-9a-f]{{{_DIGEST_CHARS}}}\Z")


def reading_policy(tables: Sequence[str], *, partition: str = "aws") -> str:
    """Return the policy that lets its holder read below these folders and nowhere else.

    Args:
        tables: URIs ``s3://bucket/folder`` of one bucket.
        partition: The part of AWS that the bucket is in, as the role's ARN names it.

    Raises:
        InvalidRequestError: a sign in the lake's address would mean more than itself in a policy,
            or the policy is too long for AWS.
    """
    folders = [_folder(one) for one in tables]
    bucket = folders[0][0]
    assert all(one == bucket for one, _ in folders), "a lake is in one bucket"
    arn = f"arn:{partition}:s3:::{bucket}"
    below = [f"{folder}/*" for _, folder in folders]
    statements: list[dict[str, Any]] = [
        {
            "Effect": "Allow",
            "Action": "s3:GetObject",
            "Resource": [f"{arn}/{one}" for one in below],
        },
        {
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": arn,
            "Condition": {"StringLike": {"s3:prefix": below}},
        },
    ]
    text = json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))
    if len(text) > POLICY_CHARS_MAX:
        raise InvalidRequestError(
            f"the policy for {tables[0]} has {len(text)} characters, and AWS takes "
            f"{POLICY_CHARS_MAX}: the prefix of lake.uri is too long for credentials of readers"
        )
    return text


def session_name(principal: str) -> str:
    """Return the principal as AWS takes it in the name of a session.

    A name that has to be changed gets a digest, and so does one that looks as if it had one: no two
    principals have one session name.
    """
    plain = _NOT_OF_NAME.sub("-", principal)
    looks_changed = _WITH_DIGEST.search(plain) is not None
    if plain == principal and 2 <= len(plain) <= _NAME_MAX and not looks_changed:
        return plain
    digest = hashlib.sha256(principal.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{plain[: _NAME_MAX - len(digest) - 1]}-{digest}"


def partition_of(role_arn: str) -> str:
    """Return the part of AWS that a role is in: ``aws``, ``aws-cn``, …; ``aws`` of other stores."""
    found = role_arn.split(":")[1] if role_arn.count(":") > 1 else ""
    return found if found.startswith("aws") else "aws"


def _folder(uri: str) -> tuple[str, str]:
    match = _FOLDER.fullmatch(uri)
    if match is None:
        raise InvalidRequestError(
            f"no credentials can be bound to {uri}: in a policy one of * ? $ {{ }} would mean more "
            "than itself",
            uri=uri,
        )
    return match[1], match[2]
