"""Cutting at watermarks, chunks, slices, and the transactions that carry claims."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import (
    GapError,
    OverlapError,
    SchemaMismatchError,
    StaleWatermarkError,
    TableMismatchError,
)
from broker.model.offsets import Offset, OffsetRange
from spark_jobs.tables import plan
from spark_jobs.tables.plan import AppendClaim

UUID = "0f0e0d0c-0b0a-4908-8706-050403020100"
OTHER = "1f0e0d0c-0b0a-4908-8706-050403020100"
LINEAGES = dict.fromkeys(range(5), "5" * 32)


def span(start: int, end: int) -> OffsetRange:
    """Return a range."""
    return OffsetRange(Offset(start), Offset(end))


def claim(start: int, end: int, rows: int | None = None) -> AppendClaim:
    """Return a claim, by default with a row per offset."""
    count = end - start if rows is None else rows
    return AppendClaim(start=Offset(start), end=Offset(end), rows_count=count)


def held(start: int, end: int, rows: int) -> AppendClaim:
    """Return a claim of the leadership that ``LINEAGES`` has for every partition."""
    return replace(claim(start, end, rows), lineage_id=LINEAGES[0])


def term(number: int, transform: int | None) -> plan.TransformTerm:
    """Return a term."""
    return plan.TransformTerm(number=number, transform=transform)


def _without_lineages(moves: dict[str, int]) -> dict[str, int]:
    return {app_id: end for app_id, end in moves.items() if "/lineage_" not in app_id}


spans = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda two: span(*sorted(two)))
by_partition = st.dictionaries(st.integers(0, 4), spans, max_size=5)


@given(by_partition, by_partition)
def test_a_cut_holds_what_is_new_and_nothing_else(
    wanted: dict[int, OffsetRange], held: dict[int, OffsetRange]
) -> None:
    """Offset by offset: wanted and above the watermark; a range beyond it is a gap."""
    claims = {number: claim(int(one.start), int(one.end)) for number, one in held.items()}
    beyond = [
        number
        for number, one in wanted.items()
        if len(one) and number in claims and one.start > claims[number].end
    ]
    if beyond:
        with pytest.raises(GapError) as gap:
            plan.cut(wanted, claims)
        assert gap.value.partition == min(beyond)
        return
    found = plan.cut(wanted, claims)
    for number, one in wanted.items():
        least = claims[number].end if number in claims else 0
        new = [offset for offset in range(one.start, one.end) if offset >= least]
        assert list(range(found[number].start, found[number].end) if number in found else []) == new


def test_a_repeated_cut_changes_nothing() -> None:
    """What was appended once is cut to nothing by the watermark that it left."""
    wanted = {0: span(3, 9)}
    first = plan.cut(wanted, {})
    assert plan.cut(wanted, {0: claim(3, int(first[0].end))}) == {}


@given(by_partition, st.integers(1, 9), st.integers(1, 20), st.integers(1, 20), st.integers(0, 50))
def test_slices_cover_exactly_the_ranges(
    wanted: dict[int, OffsetRange], tasks: int, least: int, most: int, at: int
) -> None:
    """Every offset in one slice, in order, none longer than allowed, none across the point."""
    points = {number: Offset(at) for number in wanted}
    found = plan.slices(wanted, tasks=tasks, records_min=least, records_max=most, at=points)
    assert [(one.partition, off) for one in found for off in range(one.start, one.end)] == [
        (number, off) for number, one in sorted(wanted.items()) for off in range(one.start, one.end)
    ]
    assert all(0 < one.records_count <= most for one in found)
    assert not any(one.start < at < one.end for one in found)


@given(by_partition, st.integers(1, 60))
def test_chunks_come_to_an_end(remaining: dict[int, OffsetRange], most: int) -> None:
    """Each takes the front of every range, about as much as allowed, and never nothing."""
    left = {number: one for number, one in remaining.items() if len(one)}
    for _ in range(300):
        if not left:
            return
        piece = plan.chunk(left, most)
        assert 0 < sum(len(one) for one in piece.values()) <= most + len(left)
        for number, one in piece.items():
            assert one.start == left[number].start
            left[number] = span(int(one.end), int(left[number].end))
        left = {number: one for number, one in left.items() if len(one)}
    raise AssertionError("the chunks never end")


def test_claims_survive_the_transactions() -> None:
    """The next appender reads the claims that a commit has set; the start is set once."""
    first = plan.moved(
        "a", UUID, {}, {0: span(5, 9), 2: span(0, 1)}, {0: 3, 2: 1}, lineages=LINEAGES
    )
    assert _without_lineages(first) == {
        f"headwater-append/a/{UUID}/0": 9,
        f"headwater-append/a/{UUID}/0/start": 5,
        f"headwater-append/a/{UUID}/0/rows": 3,
        f"headwater-append/a/{UUID}/2": 1,
        f"headwater-append/a/{UUID}/2/start": 0,
        f"headwater-append/a/{UUID}/2/rows": 1,
    }
    mine = plan.claims_of({**first, "somebody/else": 1}).mine("a", UUID)
    assert mine == {0: held(5, 9, 3), 2: held(0, 1, 1)}
    second = plan.moved("a", UUID, mine, {0: span(9, 12)}, {0: 2}, lineages=LINEAGES)
    assert _without_lineages(second) == {
        f"headwater-append/a/{UUID}/0": 12,
        f"headwater-append/a/{UUID}/0/rows": 5,
    }


@pytest.mark.parametrize(
    "numbers",
    [{"": 4}, {"": 4, "/start": 5, "/rows": 0}, {"": 4, "/start": 0}, {"/rows": 4, "/start": 0}],
)
def test_a_claim_that_is_not_whole_is_refused(numbers: dict[str, int]) -> None:
    """Another writer has changed the log: no append is based on half a claim."""
    found = {f"headwater-append/a/{UUID}/0{what}": number for what, number in numbers.items()}
    with pytest.raises(TableMismatchError):
        plan.claims_of(found)


def test_moved_watermarks_are_stale() -> None:
    """So are one with only more rows, and a removed one; other partitions do not matter."""
    planned = {0: claim(0, 5), 1: claim(0, 5)}
    moving = {0: span(5, 8)}
    plan.require_unmoved(planned, {0: claim(0, 5), 1: claim(0, 9)}, moving)
    for found in ({0: claim(0, 6)}, {0: claim(0, 5, 4)}, {}):
        with pytest.raises(StaleWatermarkError) as stale:
            plan.require_unmoved(planned, found, moving)
        assert (stale.value.partition, stale.value.expected) == (0, 5)
    with pytest.raises(StaleWatermarkError):
        plan.require_unmoved({}, {0: claim(0, 1)}, moving)


def terms(**of: plan.TransformTerm) -> plan.AppendClaims:
    """Return claims of appenders that have only terms."""
    return plan.AppendClaims(terms={(app, UUID): each for app, each in of.items()})


def fence(
    decoded: plan.AppendClaims, transform: int | None = 7, wanted: OffsetRange | None = None
) -> plan.AppendFence:
    """Return the fence of an append of ``a``, by default of [10, 20) of partition 0."""
    return plan.AppendFence(
        app="a", uuid=UUID, transform=transform, ranges={0: wanted or span(10, 20)}, decoded=decoded
    )


def test_a_term_is_that_of_both_tables() -> None:
    """Another transform begins a higher one; what was begun in one table only is completed."""

    def after(
        decoded: plan.TransformTerm, rejected: plan.TransformTerm, transform: int
    ) -> plan.TransformTerm | None:
        return plan.next_term(fence(terms(a=decoded), transform), terms(a=rejected))

    none, first, second = plan.TransformTerm(), term(1, 7), term(2, 8)
    assert after(none, none, 7) == first
    assert after(first, none, 7) == first
    assert after(first, none, 8) == second
    assert after(first, first, 7) is None
    assert after(first, first, 8) == second
    assert after(second, first, 8) == second
    assert after(second, first, 7) == term(3, 7)
    # The decoded table was removed or rolled back, the rejected one was not.
    assert after(none, second, 8) == term(3, 8)
    assert after(first, second, 7) == term(3, 7)
    assert after(first, term(1, 8), 7) == term(2, 7)


def test_a_term_is_above_those_of_rivals() -> None:
    """A rival may judge the same records otherwise: it has no watermark, or a lower one."""
    ours, same, rival = term(1, 7), term(2, 7), term(3, 8)
    for decoded, rejected in ((rival, ours), (ours, rival), (rival, rival)):
        mine = terms(a=ours, b=decoded)
        assert plan.next_term(fence(mine), terms(a=ours, b=rejected)) == term(4, 7)
    assert plan.next_term(fence(terms(a=ours, b=same)), terms(a=ours, b=same)) is None
    assert plan.next_term(fence(terms(a=ours, b=term(1, 8))), terms(a=ours)) == term(2, 7)
    assert plan.next_term(fence(terms(a=term(4, 7), b=rival)), terms(a=ours)) == term(4, 7)
    # An ingest that is above a backfill does not make it begin terms; the other way it does.
    for end, found in ((20, None), (19, term(4, 7))):
        above = replace(terms(a=ours, b=rival), of={("b", UUID, 0): claim(0, end)})
        assert plan.next_term(fence(above), terms(a=ours, b=rival)) == found


def test_a_rivals_new_term_makes_rows_stale() -> None:
    """Not that of a transform that judges alike, nor that of an appender that is above."""
    planned = terms(a=term(1, 7), b=term(2, 7))
    plan.require_term(fence(planned), planned, terms(a=term(1, 7), b=term(3, 7), c=term(4, 7)))
    for app in ("b", "c"):
        found = terms(**{"a": term(1, 7), app: term(3, 8)})
        with pytest.raises(StaleWatermarkError) as stale:
            plan.require_term(fence(planned), planned, found)
        assert (stale.value.app, stale.value.found) == (app, 3)
    above = replace(planned, of={("b", UUID, 0): claim(0, 20)})
    plan.require_term(fence(above), planned, terms(a=term(1, 7), b=term(3, 8)))
    with pytest.raises(StaleWatermarkError):  # a transform without a number agrees with none
        plan.require_term(fence(planned, None), planned, terms(a=term(1, 7), b=term(3, 7)))


def test_no_number_is_begun_twice() -> None:
    """The decoded table takes only a number above all; the rejected table follows."""
    planned = terms(a=term(1, 7))
    plan.require_own_term(planned, planned, "a", UUID, below=2)
    found = terms(a=term(1, 7), b=term(2, 8))
    plan.require_own_term(planned, found, "a", UUID, below=3)
    plan.require_own_term(planned, found, "a", UUID, below=None)
    with pytest.raises(StaleWatermarkError):
        plan.require_own_term(planned, found, "a", UUID, below=2)
    with pytest.raises(StaleWatermarkError):
        plan.require_own_term(planned, terms(a=term(2, 7)), "a", UUID, below=None)


def test_what_was_begun_is_finished_without_holes_in_claims() -> None:
    """The rest goes to the appender that began it, or to the one whose claim ends there."""

    def found(decoded: dict[str, AppendClaim]) -> list[tuple[str, OffsetRange, int | None]]:
        of = {(app, UUID, 0): each for app, each in decoded.items()}
        begun = {("a", UUID, 0): replace(claim(5, 50, 1), transform=7),
                 ("z", OTHER, 0): claim(0, 9)}  # fmt: skip
        told = plan.begun(plan.AppendClaims(of=of), plan.AppendClaims(of=begun), UUID)
        assert all((each.began_by, each.transform) == ("a", 7) for each in told)
        return [(each.app, each.offsets, each.since) for each in told]

    assert found({}) == [("a", span(5, 50), 5)]
    assert found({"a": claim(0, 20)}) == [("a", span(20, 50), None)]
    assert found({"a": claim(0, 50)}) == found({"b": claim(0, 60)}) == []
    assert found({"b": claim(0, 10)}) == [("a", span(10, 50), 5)]
    assert found({"b": claim(30, 90)}) == [("a", span(5, 30), 5)]
    assert found({"b": claim(20, 30)}) == [("a", span(5, 20), 5), ("b", span(30, 50), None)]
    assert found({"a": claim(0, 20), "b": claim(20, 30), "c": claim(40, 45)}) == [
        ("b", span(30, 40), None),
        ("c", span(45, 50), None),
    ]


def test_two_that_began_the_same_range_finish_it_once() -> None:
    """The second one has what lies above."""
    begun = {(app, UUID, 0): claim(0, end) for app, end in (("a", 10), ("b", 15))}
    told = plan.begun(plan.AppendClaims(), plan.AppendClaims(of=begun), UUID)
    assert [(each.app, each.offsets) for each in told] == [("a", span(0, 10)), ("b", span(10, 15))]


def test_what_another_one_began_counts_as_rejected() -> None:
    """If it decodes alike, and from the beginning of the range on; else it is refused by name."""

    def covered(begun: AppendClaim, of: dict[str, AppendClaim] | None = None, **more: int) -> int:
        decoded = plan.AppendClaims(of={(a, UUID, 0): each for a, each in (of or {}).items()})
        rejected = plan.AppendClaims(of={("b", UUID, 0): begun, ("b", UUID, 1): claim(0, 99)})
        ahead = {0: claim(0, more["ahead"])} if more else {}
        return len(plan.covered(fence(decoded), rejected, ahead, "uri").get(0, ()))

    begun = replace(claim(5, 15, 1), transform=7)
    assert covered(begun) == covered(begun, {"b": claim(0, 10)}) == 1
    assert covered(replace(begun, end=Offset(10))) == covered(replace(begun, start=Offset(20))) == 0
    assert covered(replace(begun, start=Offset(12)), ahead=12) == 1
    for other in (
        replace(begun, transform=8), replace(begun, transform=None),
        replace(begun, start=Offset(12)),
    ):  # fmt: skip
        with pytest.raises(SchemaMismatchError, match="Run the job of 'b' again") as refused:
            covered(other)
        assert (refused.value.begun, refused.value.app) == (True, "b")
    with pytest.raises(OverlapError):  # its own append of these offsets is not known
        covered(replace(begun, end=Offset(90)), {"b": claim(80, 85)})


def test_a_term_is_read_from_the_transactions() -> None:
    """It is of one appender and one stream; a table of an older build is in none."""
    number_id, transform_id = plan.term_ids("a", UUID)
    claims = plan.claims_of({number_id: 3, transform_id: 77})
    assert claims.term("a", UUID) == term(3, 77)
    assert claims.term("b", UUID) == claims.term("a", OTHER) == plan.TransformTerm()
    assert claims.of == {}


@pytest.mark.parametrize("found", [(2, 8), (3, 7), (0, None)])
def test_rows_of_an_earlier_term_are_stale(found: tuple[int, int | None]) -> None:
    """Also if the same transform has begun a later one: others may have judged in between."""
    planned = terms(a=term(1, 7))
    plan.require_term(fence(planned), planned, planned)
    with pytest.raises(StaleWatermarkError) as stale:
        plan.require_term(fence(planned), planned, terms(a=term(*found)))
    assert (stale.value.expected, stale.value.found) == (1, found[0])


def test_appenders_of_two_names_keep_apart() -> None:
    """Neighbours are fine, a shared offset is not; other streams and partitions do not count."""
    claims = plan.claims_of(
        {
            **plan.moved(
                "ingest",
                UUID,
                {},
                {0: span(10, 20), 1: span(0, 99)},
                {0: 10, 1: 99},
                lineages=LINEAGES,
            ),
            **plan.moved("ingest", OTHER, {}, {0: span(0, 99)}, {0: 99}, lineages=LINEAGES),
        }
    )
    others = claims.others("backfill", UUID)
    plan.require_apart({0: span(0, 10)}, others)
    plan.require_apart({0: span(20, 30), 2: span(0, 9)}, others)
    for wanted in (span(0, 11), span(19, 30), span(12, 13), span(0, 99)):
        with pytest.raises(OverlapError) as overlap:
            plan.require_apart({0: wanted}, others)
        assert overlap.value.app == "ingest"
    assert claims.others("ingest", UUID) == []
    assert claims.strangers("ingest", UUID) == [OTHER]


@given(st.integers(0, 2**128 - 1))
def test_a_lineage_id_survives_as_two_transactions(number: int) -> None:
    """A transaction's version has 64 bits with a sign, an id has 128 without."""
    lineage = f"{number:032x}"
    moves = plan.moved("a", UUID, {}, {2: span(0, 7)}, {2: 7}, lineages={2: lineage})
    assert all(-(2**63) <= version < 2**63 for version in moves.values())
    assert set(moves) == set(plan.all_ids("a", UUID, 2)) - set(plan.transform_ids("a", UUID, 2))
    assert plan.claims_of(moves).mine("a", UUID)[2].lineage_id == lineage
    del moves[plan.lineage_ids("a", UUID, 2)[0]]
    assert plan.claims_of(moves).mine("a", UUID)[2].lineage_id is None


class _Named:
    def __init__(self, identity: str) -> None:
        self.identity = identity


def test_a_claim_names_the_transform_of_its_own_end() -> None:
    """An old build moves the end and leaves the number there: then the transform is not known."""
    number = plan.transform_number(_Named("one"))
    assert number is not None
    assert 0 <= number < 2**63
    assert number == plan.transform_number(_Named("one")) != plan.transform_number(_Named("two"))
    assert plan.transform_number(object()) is None

    told = plan.moved("a", UUID, {}, {2: span(0, 7)}, {2: 7}, lineages=LINEAGES, transform=number)
    old = plan.moved("a", UUID, plan.claims_of(told).mine("a", UUID), {2: span(7, 9)}, {2: 2},
                     lineages=LINEAGES)  # fmt: skip

    assert set(told) == set(plan.all_ids("a", UUID, 2))
    assert plan.claims_of(told).mine("a", UUID)[2].transform == number
    assert plan.claims_of(told | old).mine("a", UUID)[2].transform is None
