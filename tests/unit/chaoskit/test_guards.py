"""The stories about access, and what guards.py can change, name each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaoskit.cluster import ChaosError
from chaoskit.guards import CHANGES, Guards
from chaoskit.permits import refused_needs
from chaoskit.schedule import plan
from chaoskit.stories import STORIES, Do, Evidence, Need


def test_every_change_of_access_is_told() -> None:
    """In a story that needs brokers that ask, and that counts once the change is in force."""
    told = {step.what for story in STORIES for step in story.steps if step.do is Do.ACCESS}
    assert told == set(CHANGES)
    for story in STORIES:
        asks = any(step.do is Do.ACCESS for step in story.steps)
        assert asks == (Need.ACCESS in story.needs) == (Evidence.IN_FORCE in story.evidence)


@pytest.mark.parametrize("secure", [False, True])
def test_access_changes_only_where_brokers_ask(secure: bool) -> None:
    """The others are skipped by name."""
    made = plan(1, minutes=0, brokers=5, partitions=1, refused=refused_needs(secure=secure))
    names = {story.name for story in STORIES if Need.ACCESS in story.needs}
    assert (names <= made.skipped.keys()) == (not secure)
    assert (names <= set(made.names())) == secure


def test_certificates_of_the_doors_are_not_those_of_the_links(tmp_path: Path) -> None:
    """Each broker has a pair of its own, on both doors, and a file for its owner's token."""
    guards = Guards(tmp_path, ("a", "b"))
    settings = {broker: guards.settings(broker) for broker in ("a", "b")}
    assert settings["a"]["flight"] == settings["a"]["liftbridge"]
    files = [settings[one]["flight"]["tls_cert_file"] for one in ("a", "b")]
    assert len(set(files)) == 2
    assert all(Path(one).exists() for one in files)
    owners = {settings[one]["access"]["owner_token_file"] for one in ("a", "b")}
    assert len(owners) == 2
    guards.close()


def test_a_door_that_serves_an_old_certificate_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody serves the new one in time."""
    monkeypatch.setattr("chaoskit.guards._IN_FORCE_S", 0.0)
    guards = Guards(tmp_path, ("a",))
    monkeypatch.setattr(guards, "_served", lambda _: b"old")
    with pytest.raises(ChaosError, match="an old certificate is served"):
        guards.change("replace the certificates", {"a": 1})
