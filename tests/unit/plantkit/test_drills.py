"""The drills as data: each planted bug has one, and reports are parsed rightly."""

from __future__ import annotations

from collections import Counter

from checkkit.anomalies import Anomaly, Verdict, Violation
from checkkit.check_groups import GroupAnomaly
from plantkit.drills import DRILLS, words_in
from plantkit.planting import known_plants


def test_every_planted_bug_has_to_be_found() -> None:
    """A campaign hunts each of them, and each campaign hunts three or more."""
    assert {one.plant for one in DRILLS} == set(known_plants())
    assert all(count >= 3 for count in Counter(one.campaign for one in DRILLS).values())
    assert len({one.campaign for one in DRILLS}) == 3


def test_a_bug_is_known_by_what_the_judge_or_an_error_says() -> None:
    """The texts that a drill expects are those of the reports."""
    anomalies = {one.value for one in (*Anomaly, *GroupAnomaly)}
    for one in DRILLS:
        assert one.words
        assert all(word in anomalies or word.endswith("Error") for word in one.words)


def test_a_report_is_read_for_kinds_and_errors() -> None:
    """Kinds of violation and names of errors count; what merely reads like one does not."""
    verdict = Verdict.of(
        [Violation(Anomaly.LOST, 0, 5, "doubled: x was acked"), Violation(Anomaly.GAP, 1, 2, "no")]
    )
    report = f"seed 1\nGapError: offset 3 was due\n{verdict}\n"
    assert words_in(report) == {"lost", "gap", "GapError"}
    assert words_in("seed 1\nCampaignError: the broker ended\nok\n") == {"CampaignError"}
