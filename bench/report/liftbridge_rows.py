"""The rows of Liftbridge's API: ours and Liftbridge 1.9.0, by the same Go client, in one run."""

from __future__ import annotations

from typing import Final

from bench.report.table import AtMost, Row, Times

_SIZES: Final = {"100B": "100 B", "1KiB": "1 KiB"}


def _rate(case: str, path: str, factor: float) -> Row:
    peer = (f"liftbridge/{case}/liftbridge",)
    return Row(
        path=f"Liftbridge API, {path}",
        unit="msg/s",
        ours=(f"liftbridge/{case}/ours",),
        default=peer,
        bar=f"≥ {factor}× Liftbridge",
        bars=((Times(factor, peer),),),
    )


def _time(case: str, path: str, factor: float | None) -> Row:
    peers = tuple(f"liftbridge/{case}/liftbridge_{part}" for part in ("p50", "p99"))
    return Row(
        path=f"Liftbridge API, {path}, p50 / p99",
        unit="ms",
        ours=tuple(f"liftbridge/{case}/ours_{part}" for part in ("p50", "p99")),
        default=peers,
        bar="" if factor is None else f"p50 ≤ {factor}× Liftbridge",
        bars=() if factor is None else ((Times(factor, peers[:1], at_most=True),),),
    )


LIFTBRIDGE_ROWS: Final = (
    *(_rate(f"subscribe/{size}", f"Subscribe from earliest, {name}", 2.5)
      for size, name in _SIZES.items()),
    *(_rate(f"publish/{size}", f"PublishAsync with acks of ALL, {name}", 1.2)
      for size, name in _SIZES.items()),
    _time("unary/100B", "one Publish after the other, 100 B", 1.5),
    _time("busy/100B", "the same beside a busy Subscribe, 100 B", None),
    _rate("group/100B", "catch-up of 4 members over 8 partitions, 100 B", 2.0),
    Row(
        path="Liftbridge API, first message at an offset only in the table, p50 / p99",
        unit="ms",
        ours=("liftbridge/first/table/ours_p50", "liftbridge/first/table/ours_p99"),
        bar="p50 ≤ 100 ms",
        bars=((AtMost(100.0),),),
    ),
)  # fmt: skip
