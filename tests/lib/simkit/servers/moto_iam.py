"""A moto that checks each request against the policies of who makes it.

moto enforces actions and resources. It does not look at conditions, nor at the policy of a session.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import boto3
import pytest

from headwater.local.embedded import EmbeddedServer, start_moto

_ROOT: Final[dict[str, Any]] = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


@contextmanager
def checking_moto(folder: Path, *, bucket: str) -> Iterator[EmbeddedServer]:
    """Start moto with one bucket; it checks nothing before :func:`check_from_now`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INITIAL_NO_AUTH_ACTION_COUNT", "inf")
        moto = start_moto(folder, bucket=bucket)
    with moto:
        yield moto


def check_from_now(moto: EmbeddedServer) -> None:
    """Let the server check each request from the next one on; a number is the text of its body."""
    url, text = f"{moto.address}/moto-api/reset-auth", {"Content-Type": "text/plain"}
    urllib.request.urlopen(urllib.request.Request(url, data=b"0", headers=text)).close()


def iam_of(moto: EmbeddedServer) -> Any:
    """Return a client of IAM, for use before the server checks requests."""
    return boto3.client("iam", endpoint_url=moto.address, region_name="us-east-1", **_ROOT)


def make_user(moto: EmbeddedServer, name: str, policy: str) -> dict[str, str]:
    """Make a user with a policy; return its credentials."""
    iam = iam_of(moto)
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="page", PolicyDocument=policy)
    made = iam.create_access_key(UserName=name)["AccessKey"]
    return {
        "AWS_ACCESS_KEY_ID": made["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"],
    }
