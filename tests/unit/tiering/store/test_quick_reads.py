"""Quick reads ask as boto3 does, and leave to it what is not plain."""

from __future__ import annotations

import calendar
from dataclasses import replace
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials

from broker.model.secret import Secret
from tiering.store.location import Credentials, StoreConfig
from tiering.store.opening import open_for_reading, open_store
from tiering.store.quick_reads import QuickReads, _page, is_plain, signed

_AT = "20261126T010203Z"
_AT_S = calendar.timegm((2026, 11, 26, 1, 2, 3))
_PLAIN = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "AWS_REGION": "eu-west-1",
}


@pytest.mark.parametrize("token", [None, "a session's token"])
@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/bucket/lake/a b=1/ö+c.parquet", {}),
        ("/bucket", {"list-type": "2", "prefix": "lake/a=b/", "start-after": "lake/a=b/c d"}),
    ],
)
def test_the_signature_is_that_of_botocore(
    path: str, query: dict[str, str], token: str | None
) -> None:
    """Checked against botocore's own signer, for a key and a query with odd characters."""
    key, secret = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    sent = quote(path, safe="/-_.~")
    asked = "&".join(f"{k}={quote(v, safe='-_.~')}" for k, v in sorted(query.items()))
    credentials = Credentials(
        access_key_id=key, secret_access_key=Secret(secret), session_token=Secret.of(token)
    )
    ours = signed(credentials, "eu-west-1", ("store:9000", sent, asked), _AT_S)

    signer = S3SigV4Auth(BotoCredentials(key, secret, token), "s3", "eu-west-1")
    request = AWSRequest("GET", f"http://store:9000{sent}", params=query)
    request.context["timestamp"] = _AT
    for name in ("x-amz-content-sha256", "x-amz-date", "x-amz-security-token"):
        if name in ours:
            request.headers[name] = ours[name]
    text = signer.string_to_sign(request, signer.canonical_request(request))
    assert ours["Authorization"].endswith(f"Signature={signer.signature(text, request)}")
    assert ours["x-amz-date"] == _AT


def test_only_a_plain_store_is_read_quickly() -> None:
    """A proxy, a bundle of certificates, a profile or AWS itself are botocore's."""
    config = StoreConfig.from_env("s3://bucket/lake", _PLAIN)
    assert is_plain(config, {})
    assert is_plain(config, {"AWS_CA_BUNDLE": "/a.pem"})  # plain HTTP has no certificate
    assert not is_plain(config, {"http_proxy": "http://proxy:1"})
    secure = replace(config, endpoint="https://store")
    assert is_plain(secure, {})
    assert not is_plain(secure, {"AWS_CA_BUNDLE": "/a.pem"})
    for other in (
        replace(config, credentials=None),
        replace(config, endpoint=None),
        replace(config, endpoint="http://store/below"),
        replace(config, path_style=False),
        replace(config, region=None),
    ):
        assert not is_plain(other, {})
    assert not is_plain(StoreConfig.from_env("/tmp/lake", {}), {})


def test_other_stores_are_opened_as_ever() -> None:
    """open_for_reading gives what open_store does where the store is not plain."""
    aws = replace(StoreConfig.from_env("s3://bucket/lake", _PLAIN), endpoint=None)
    assert type(open_for_reading(aws)) is type(open_store(aws))
    assert isinstance(
        open_for_reading(StoreConfig.from_env("s3://bucket/lake", _PLAIN)), QuickReads
    )


_HEAD = b'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
_ITEM = b"<Contents><Key>lake/a&amp;b</Key><Size>7</Size><ETag>&quot;e&quot;</ETag></Contents>"
_TAIL = b"</ListBucketResult>"


def test_a_page_of_a_listing() -> None:
    """Keys below the prefix, sizes, the store's name of the bytes, and where it goes on."""
    found = _page(_HEAD + b"<IsTruncated>false</IsTruncated>" + _ITEM + _TAIL, "lake/")
    assert found is not None
    (info,), token = found
    assert (info.key, info.size_bytes, info.etag, token) == ("a&b", 7, '"e"', "")
    more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>"
    assert _page(_HEAD + more + _ITEM + _TAIL, "lake/") == ([info], "x")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html/>",
        b'<!DOCTYPE a [<!ENTITY b "c">]>' + _HEAD + _TAIL,
        _HEAD + _ITEM,
        _HEAD + b"<IsTruncated>true</IsTruncated>" + _ITEM + _TAIL,
        _HEAD + _ITEM.replace(b"lake/", b"other/") + _TAIL,
        _HEAD + _ITEM.replace(b">7<", b">-7<") + _TAIL,
        _HEAD + _ITEM.replace(b"<Size>7</Size>", b"") + _TAIL,
    ],
)
def test_a_strange_page_is_left_to_boto3(body: bytes) -> None:
    """It says what is wrong."""
    assert _page(body, "lake/") is None
