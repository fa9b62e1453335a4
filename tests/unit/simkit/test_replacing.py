"""A planted bug is there for the length of a `with`, and leaves nothing behind."""

from __future__ import annotations

import pytest

from simkit.replacing import replaced, together


class Product:
    """A class that the tests break."""

    def step(self) -> str:
        """Return the right result."""
        return "right"

    @staticmethod
    def rule() -> str:
        """Return the right result."""
        return "right"

    @classmethod
    def made(cls) -> type[Product]:
        """Return the name of the class."""
        return cls


class Special(Product):
    """A class that inherits all steps."""


def test_a_bug_is_there_within_the_with_alone() -> None:
    """Also after an error."""

    def plant() -> None:
        with replaced(Product, "step", lambda _: "wrong"):
            assert Product().step() == "wrong"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        plant()
    assert Product().step() == "right"


def test_static_and_class_methods_come_back_as_such() -> None:
    """A plain function in their place would get an argument more, or none."""
    with together(
        replaced(Product, "rule", staticmethod(lambda: "wrong")),
        replaced(Product, "made", classmethod(lambda _: Special)),
    ):
        assert Product().rule() == "wrong"
        assert Product.made() is Special
    assert Product().rule() == "right"
    assert Special.made() is Special
    assert Product.made() is Product


@pytest.mark.parametrize("name", ["step", "gone"], ids=["inherited", "renamed"])
def test_a_name_that_the_owner_does_not_have_is_refused(name: str) -> None:
    """An inherited step would stay behind as the heir's own; a renamed one is no step any more."""
    with pytest.raises(KeyError, match=name), replaced(Special, name, lambda _: "wrong"):
        pytest.fail("it was replaced")
    assert name not in vars(Special)


def test_of_two_bugs_together_none_stays_when_the_second_cannot_be_planted() -> None:
    """The first is taken back."""
    with (
        pytest.raises(KeyError),
        together(
            replaced(Product, "step", lambda _: "wrong"), replaced(Product, "gone", lambda _: None)
        ),
    ):
        pytest.fail("both were replaced")
    assert Product().step() == "right"
