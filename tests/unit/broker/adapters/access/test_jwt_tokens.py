"""JWTs: whose keys, which algorithms, which claims; and keys that change while the broker runs."""

from __future__ import annotations

import base64
import hmac
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey
from structlog.testing import capture_logs

from broker.adapters.access.jwt_tokens import JwtTokens
from broker.errors import InvalidConfigError, UnauthenticatedError
from broker.ports.access import Identity

NOW_S: Final = 1_700_000_000
NOW_US: Final = NOW_S * 1_000_000
CLAIMS: Final[dict[str, Any]] = {
    "iss": "https://login.example",
    "aud": "headwater",
    "sub": "ann",
    "exp": NOW_S + 600,
}
SECP160R1: Final = """-----BEGIN PUBLIC KEY-----
MD4wEAYHKoZIzj0CAQYFK4EEAAgDKgAET0wAz0dtdxw3g7JtnxGSMbOZkwYaL1cq
8We/y/AmA59rRz57FZxu1g==
-----END PUBLIC KEY-----
"""


@pytest.fixture(scope="module")
def rsa() -> RSAKey:
    """Give a key pair of an issuer."""
    return RSAKey.generate_key(2048, {"kid": "one"})


@pytest.fixture(scope="module")
def ec() -> ECKey:
    """Give a key pair of another kind."""
    return ECKey.generate_key("P-256", {"kid": "two"})


def tokens(path: Path) -> JwtTokens:
    """Return an authenticator with the keys of a file."""
    return JwtTokens(
        str(path), issuer="https://login.example", audience="headwater", principal_claim="sub"
    )


def jwks(path: Path, *keys: RSAKey | ECKey | OctKey, private: bool = False) -> Path:
    """Write a JWKS."""
    path.write_text(json.dumps(KeySet([*keys]).as_dict(private=private)))
    return path


def named(found: Identity | None) -> Identity:
    """Return whom a token names; the key that signed it is left out."""
    assert found is not None
    assert found.key
    return replace(found, key="")


def signed(key: RSAKey | ECKey | OctKey, algorithm: str, **changes: Any) -> str:
    """Return a token; a change to None leaves the claim out."""
    claims = {name: one for name, one in {**CLAIMS, **changes}.items() if one is not None}
    header = {"alg": algorithm, **({"kid": key.kid} if key.kid else {})}
    return jwt.encode(header, claims, key, algorithms=[algorithm])


def test_a_token_of_each_kind_of_key_names_its_principal(
    tmp_path: Path, rsa: RSAKey, ec: ECKey
) -> None:
    """RSA and EC by a JWKS, a shared secret by itself, and a public key in PEM."""
    both = tokens(jwks(tmp_path / "both.json", rsa, ec))
    ann = Identity(principal="ann", via="jwt", expires_us=(NOW_S + 600) * 1_000_000)
    assert named(both.identify(signed(rsa, "RS256"), NOW_US)) == ann
    assert named(both.identify(signed(ec, "ES256"), NOW_US)) == ann
    secret = OctKey.generate_key(256, {"kid": "three"})
    shared = tokens(jwks(tmp_path / "secret.json", secret, private=True))
    assert named(shared.identify(signed(secret, "HS256"), NOW_US)) == ann
    for key, algorithm in ((rsa, "PS256"), (ec, "ES256")):
        pem = tmp_path / "key.pem"
        pem.write_bytes(key.as_pem(private=False))
        assert named(tokens(pem).identify(signed(key, algorithm), NOW_US)) == ann


@pytest.mark.parametrize(
    "change",
    [
        {"exp": NOW_S - 31},
        {"exp": None},
        {"nbf": NOW_S + 31},
        {"iss": "https://other.example"},
        {"iss": None},
        {"aud": "other"},
        {"aud": None},
        {"sub": None},
        {"sub": ""},
        {"sub": "a\nb"},
        {"sub": ["ann"]},
        {"sub": "#owner"},
        {"sub": "*"},
    ],
)
def test_a_claim_that_does_not_fit_is_refused(
    tmp_path: Path, rsa: RSAKey, change: dict[str, Any]
) -> None:
    """A token for another service, of another issuer, too old, too new, of nobody: each named."""
    one = tokens(jwks(tmp_path / "k.json", rsa))
    told = "expired" if change.get("exp") else f"claim '{next(iter(change))}'"
    with pytest.raises(UnauthenticatedError, match=told):
        one.identify(signed(rsa, "RS256", **change), NOW_US)


def test_the_algorithm_follows_from_the_key_and_not_from_the_token(
    tmp_path: Path, rsa: RSAKey
) -> None:
    """A public key is no shared secret, and `none` is no signature."""
    one = tokens(jwks(tmp_path / "k.json", rsa))
    good = signed(rsa, "RS256").split(".")
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"one"}').rstrip(b"=").decode()
    made = hmac.digest(rsa.as_pem(private=False), f"{head}.{good[1]}".encode(), "sha256")
    signature = base64.urlsafe_b64encode(made).rstrip(b"=").decode()
    forged = f"{head}.{good[1]}.{signature}"
    unsigned = f"{forged.rpartition('.')[0]}."
    for text in (forged, unsigned, "a.b.c", "..", signed(rsa, "RS256")[:-4] + "AAAA"):
        with pytest.raises(UnauthenticatedError):
            one.identify(text, NOW_US)
    stranger = RSAKey.generate_key(2048, {"kid": "one"})
    with pytest.raises(UnauthenticatedError):
        one.identify(signed(stranger, "RS256"), NOW_US)


def test_a_token_that_was_good_ends(tmp_path: Path, rsa: RSAKey) -> None:
    """What is remembered of a token is forgotten at its end."""
    one, text = tokens(jwks(tmp_path / "k.json", rsa)), signed(rsa, "RS256")
    assert one.identify(text, NOW_US) is not None
    with pytest.raises(UnauthenticatedError):
        one.identify(text, NOW_US + 600 * 1_000_000)


def test_keys_change_without_a_restart(tmp_path: Path, rsa: RSAKey) -> None:
    """A token of the former key is refused at once, also one that was just accepted."""
    path = jwks(tmp_path / "k.json", rsa)
    one, former = tokens(path), signed(rsa, "RS256")
    assert one.identify(former, NOW_US) is not None
    new = RSAKey.generate_key(2048, {"kid": "new"})
    jwks(tmp_path / "next", new)
    (tmp_path / "next").replace(path)
    with pytest.raises(UnauthenticatedError):
        one.identify(former, NOW_US)
    assert one.identify(signed(new, "RS256"), NOW_US) is not None
    path.write_text("{")  # half a file: the keys from before still count
    assert one.identify(signed(new, "RS256"), NOW_US) is not None


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let the system open no file meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_key_that_was_taken_away_goes_though_the_first_read_fails(
    tmp_path: Path, rsa: RSAKey
) -> None:
    """A flood of connections may have taken all descriptors when the file changes."""
    path = jwks(tmp_path / "k.json", rsa)
    one, former = tokens(path), signed(rsa, "RS256")
    assert one.identify(former, NOW_US) is not None
    jwks(path, RSAKey.generate_key(2048, {"kid": "new"}))
    with capture_logs() as lines, no_descriptors():
        for _ in range(3):
            assert one.identify(former, NOW_US) is not None, "keys that cannot be read"
    assert [line["event"] for line in lines] == ["jwt_keys_kept"], "said once"
    with pytest.raises(UnauthenticatedError):
        one.identify(former, NOW_US)


def test_a_key_of_an_unknown_kind_is_a_file_that_cannot_be_used(
    tmp_path: Path, rsa: RSAKey
) -> None:
    """The keys from before count; the curve is one that the library does not have."""
    path = jwks(tmp_path / "k.json", rsa)
    one = tokens(path)
    path.write_text(SECP160R1)
    assert one.identify(signed(rsa, "RS256"), NOW_US) is not None
    with pytest.raises(InvalidConfigError, match="holds no"):
        tokens(path)


def test_what_is_no_jwt_is_somebody_elses_to_judge(tmp_path: Path, rsa: RSAKey) -> None:
    """The next authenticator is asked."""
    assert tokens(jwks(tmp_path / "k.json", rsa)).identify("hw_1_2", NOW_US) is None


def test_a_file_without_keys_is_refused_at_the_start(tmp_path: Path) -> None:
    """So is a shared secret that can be guessed."""
    path = tmp_path / "k.json"
    with pytest.raises(InvalidConfigError, match="cannot read"):
        tokens(path)
    for text in ("", "{}", '{"keys": []}', "-----BEGIN PUBLIC KEY-----"):
        path.write_text(text)
        with pytest.raises(InvalidConfigError, match="holds no"):
            tokens(path)
    path.write_text(json.dumps({"kty": "oct", "kid": "s", "k": "c2hvcnQ"}))
    with pytest.raises(InvalidConfigError, match="shared secret of 5 bytes"):
        tokens(path)
