"""The principal of a client certificate."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.access.certificates import principal_of

_SUBJECT = ((("organizationName", "us"),), (("commonName", "ann"),))


@pytest.mark.parametrize(
    ("certificate", "principal"),
    [
        ({}, None),
        ({"subject": _SUBJECT}, "ann"),
        ({"subject": _SUBJECT, "subjectAltName": (("DNS", "a.b"), ("DNS", "c"))}, "a.b"),
        ({"subjectAltName": (("URI", "spiffe://a/b"),)}, "spiffe://a/b"),
        ({"subject": ((("organizationName", "us"),),)}, None),
        ({"subject": _SUBJECT, "subjectAltName": (("othername", "<unsupported>"),)}, None),
        ({"subjectAltName": (("IP Address", "0:0:0:0:0:0:0:1"),)}, "::1"),
        ({"subjectAltName": (("IP Address", "<invalid>"),)}, None),
        ({"subjectAltName": (("DirName", _SUBJECT), ("DNS", "a.b"))}, None),
    ],
)
def test_the_first_name_counts(certificate: dict[str, Any], principal: str | None) -> None:
    """Of the SAN, else the common name: as gRPC does, so that both doors agree."""
    assert principal_of(certificate) == principal
