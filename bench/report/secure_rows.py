"""The rows of what security costs: ours with it, beside ours without it in the same run."""

from __future__ import annotations

from typing import Final

from bench.report.table import Row, Times

_SIZES: Final = {"100B": "100 B", "1KiB": "1 KiB"}


def _rate(size: str, kind: str, what: str) -> Row:
    without = (f"secure/{size}/{kind}_open",)
    return Row(
        path=f"{what}, {_SIZES[size]}, with TLS, identity and grants (beside: without)",
        unit="rec/s",
        ours=(f"secure/{size}/{kind}_secure",),
        default=without,
        bar="≥ 0.85× without",
        bars=((Times(0.85, without),),),
    )


def _single(size: str) -> Row:
    def pair(side: str) -> tuple[str, ...]:
        return tuple(f"secure/{size}/single_{side}_{part}" for part in ("p50", "p99"))

    return Row(
        path=f"… one outstanding record, {_SIZES[size]}, p50 / p99",
        unit="ms",
        ours=pair("secure"),
        default=pair("open"),
        bar="p50 ≤ 1.15× without",
        bars=((Times(1.15, pair("open")[:1], at_most=True),), ()),
    )


SECURE_ROWS: Final = tuple(
    row
    for size in _SIZES
    for row in (
        _rate(size, "publish", "Flight publish"),
        _rate(size, "read", "Flight read from the start"),
        _single(size),
    )
)
