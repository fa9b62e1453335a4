"""A secret is shown by no text form, and by nothing that copies or sends values."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable

import pytest

from broker.config import NatsConfig
from broker.model.secret import Secret

HIDDEN = "hunter2"


@dataclasses.dataclass(frozen=True)
class _Holder:
    key: Secret


@pytest.mark.parametrize(
    "show",
    [
        repr,
        str,
        "{}".format,
        "{:>20}".format,
        "%s %r".__mod__,
        lambda secret: "%s" % secret,  # noqa: UP031  # the old form is a way to show a value
        lambda secret: repr([secret]),
        lambda secret: repr(_Holder(secret)),
        lambda secret: str(dataclasses.asdict(_Holder(secret))),
        lambda secret: json.dumps({"key": secret}, default=str),
        lambda secret: str(NatsConfig(password=secret)),
    ],
)
def test_no_text_form_shows_it(show: Callable[[object], str]) -> None:
    """Texts of the secret, and of what holds it, have stars."""
    secret = Secret(HIDDEN)
    try:
        shown = show(secret)
    except TypeError as refused:  # "%s %r" wants two values
        shown = str(refused)
    assert HIDDEN not in shown


@pytest.mark.parametrize("send", [lambda one: one.__reduce_ex__(4), json.dumps])
def test_it_is_not_sent(send: Callable[[object], object]) -> None:
    """Pickle, which calls this method, and JSON refuse it, by an error that does not show it."""
    with pytest.raises(TypeError) as refused:
        send(Secret(HIDDEN))
    assert HIDDEN not in str(refused.value)


def test_equality_copies_and_emptiness() -> None:
    """Equal texts are equal secrets; a copy is the secret itself; a plain text is another thing."""
    secret = Secret(HIDDEN)
    assert secret == Secret(HIDDEN)
    assert secret != Secret("other")
    assert secret != HIDDEN
    assert hash(secret) == hash(Secret(HIDDEN))
    assert copy.deepcopy(secret) is secret
    assert copy.copy(secret) is secret
    assert not Secret("")
    assert secret.reveal() == HIDDEN


def test_a_secret_of_another_type_is_refused_without_its_value() -> None:
    """A number in the place of a password is not shown either."""
    with pytest.raises(TypeError, match="of type int"):
        Secret(12345)  # type: ignore[arg-type]
