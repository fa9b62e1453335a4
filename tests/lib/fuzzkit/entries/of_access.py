"""Decoders of proofs and policies: tokens, JWTs, their keys, casbin's files."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Final

from joserfc.jwk import OctKey

from broker.adapters.access.casbin_policy import CasbinPolicy
from broker.adapters.access.jwt_tokens import JwtTokens
from broker.core.access import static_tokens
from broker.errors import HeadwaterError, InvalidConfigError
from broker.model.access import check_name
from fuzzkit.decoder import Decoder, scratch

_SECRET: Final = b"k" * 40
_NOW_US: Final = 1_800_000_000_000_000


def jwks() -> bytes:
    """Return the keys of the tokens that :func:`signed` makes."""
    key = OctKey.import_key(_SECRET).as_dict()
    return json.dumps({"keys": [key]}).encode()


def _tokens_of(keys: bytes, name: str = "changed") -> JwtTokens:
    path = scratch() / f"{name}.json"
    path.write_bytes(keys)
    return JwtTokens(str(path), issuer="i", audience="a", principal_claim="sub")


@cache
def _good_tokens() -> JwtTokens:
    return _tokens_of(jwks(), "good")


def _claims() -> list[bytes]:
    whole = {"iss": "i", "aud": "a", "exp": _NOW_US // 1_000_000 + 60, "sub": "ann", "nbf": 1}
    return [json.dumps(whole).encode(), json.dumps({**whole, "aud": ["a", "b"]}).encode()]


def _identified(data: bytes) -> object:
    text = data.decode("latin-1")
    with suppress(HeadwaterError):
        static_tokens.split_token(text)
    return _good_tokens().identify(text, _NOW_US)


def signed(claims: bytes, head: bytes = b'{"alg":"HS256"}') -> str:
    """Return a token that says this, whatever it is, with a good signature."""

    def part(body: bytes) -> bytes:
        return base64.urlsafe_b64encode(body).rstrip(b"=")

    signed = part(head) + b"." + part(claims)
    return (signed + b"." + part(hmac.digest(_SECRET, signed, "sha256"))).decode()


_MODEL: Final = b"""[request_definition]
r = sub, obj, act
[policy_definition]
p = sub, obj, act
[role_definition]
g = _, _
[policy_effect]
e = some(where (p.eft == allow))
[matchers]
m = g(r.sub, p.sub) && keyMatch(r.obj, p.obj) && r.act == p.act
"""
_POLICY: Final = b"p, ann, orders, Publish\np, ops, stream:*, tier\ng, bob, ops\n"


def _policy(data: bytes) -> object:
    return CasbinPolicy(_MODEL.decode(), data.decode(errors="replace")).allows(
        "bob", "stream:x", "tier"
    )


def _model(data: bytes) -> object:
    return CasbinPolicy(data.decode(errors="replace"), _POLICY.decode()).allows(
        "bob", "stream:x", "tier"
    )


def decoders() -> Iterator[Decoder]:
    """Yield them all."""
    yield Decoder(
        name="jwt",
        covers=(
            "broker.adapters.access.jwt_tokens.JwtTokens.identify",
            "broker.core.access.static_tokens.split_token",
        ),
        decode=_identified,
        make_seeds=lambda: [signed(one).encode() for one in _claims()] + [b"hw_" + b"a" * 16],
    )
    yield Decoder(
        name="jwt_claims",
        covers=("broker.adapters.access.jwt_tokens.JwtTokens.identify",),
        decode=lambda data: _good_tokens().identify(signed(data), _NOW_US),
        make_seeds=_claims,
    )
    yield Decoder(
        name="jwt_header",
        covers=("broker.adapters.access.jwt_tokens.JwtTokens.identify",),
        decode=lambda data: _good_tokens().identify(signed(_claims()[0], data), _NOW_US),
        make_seeds=lambda: [b'{"alg":"HS256"}', b'{"alg":"HS256","typ":"JWT"}'],
    )
    yield Decoder(
        name="jwks",
        covers=("broker.adapters.access.jwt_tokens.JwtTokens",),
        decode=_tokens_of,
        make_seeds=lambda: [jwks()],
        errors=(InvalidConfigError,),
    )
    yield Decoder(
        name="policy_lines",
        covers=("broker.adapters.access.casbin_policy.CasbinPolicy",),
        decode=_policy,
        make_seeds=lambda: [_POLICY],
        errors=(InvalidConfigError,),
    )
    yield Decoder(
        name="policy_model",
        covers=("broker.adapters.access.casbin_policy.CasbinPolicy",),
        decode=_model,
        make_seeds=lambda: [_MODEL],
        errors=(InvalidConfigError,),
    )
    yield Decoder(
        name="principal",
        covers=("broker.model.access.check_name",),
        decode=lambda data: check_name(data.decode("latin-1"), "principal"),
        make_seeds=lambda: [b"ann@example.org"],
    )
