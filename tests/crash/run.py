"""``make crash ROUNDS=50``: kill a loaded broker again and again, and audit what it acknowledged.

Prints one line a round and ``crash: N rounds, A acked, 0 lost, 0 doubled, 0 out of order, seed S``
at the end; the raw numbers go to ``out/crash.json``. Exits with 1 on any violation and keeps the
directories then; ``--seed`` repeats the plan.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "lib")]

if TYPE_CHECKING:
    from crashkit.campaign import Tally


def main(arguments: list[str] | None = None) -> int:
    """Run one campaign; return 0 when every promise held."""
    from broker.errors import HeadwaterError
    from crashkit import disk_stories, running
    from crashkit.campaign import Campaign, CampaignConfig

    given = _parse(arguments)
    run = running.Run.begin("crash", given)
    config = CampaignConfig(
        rounds=given.rounds,
        seed=run.seed,
        folder=run.folder,
        s3=given.s3,
        check_every=given.check_every,
        spark_every=given.spark_every,
        records_per_s=given.records_per_s or (300 if given.s3 == "local" else 100),
        forked=given.forked,
    )
    campaign = Campaign(config, lambda text: print(text, flush=True))
    failures = []
    try:
        campaign.run()
        for name in () if given.no_disk_stories else disk_stories.STORIES:
            told = disk_stories.tell(name, run.folder / name.replace(" ", "-"))
            print(f"  {name}: {told}", flush=True)
    except (running.CampaignError, HeadwaterError) as error:
        failures = [f"{type(error).__name__}: {error}"]
    tally, acked = campaign.tally, campaign.recorder.acked_count
    _print(tally)
    summary = f"{tally.kills} rounds, {acked} acked"
    return run.end(campaign.checker.verdict, failures, summary, {"acked": acked, **asdict(tally)})


def _print(tally: Tally) -> None:
    for name, count in sorted(tally.moments.items(), key=lambda one: -one[1]):
        print(f"  {count:4d} x killed at {name}")
    if tally.recovery_s:
        print(
            f"  {tally.kills} kills, {tally.recovery_kills} more in recovery, "
            f"{tally.nats_restarts} nats-server restarts, {tally.pauses} freezes, "
            f"{tally.audits} audits ({tally.spark_reads} also by Spark); "
            f"ready after {median(tally.recovery_s):.2f} s (median), "
            f"{max(tally.recovery_s):.2f} s (worst)"
        )


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    from crashkit import running

    parser = running.options(__doc__ or "")
    parser.add_argument("--s3", choices=["local", "moto"], default="local")
    parser.add_argument("--check-every", type=int, default=5, metavar="ROUNDS")
    parser.add_argument(
        "--spark-every", type=int, default=10, metavar="ROUNDS", help="0: without Spark"
    )
    parser.add_argument("--records-per-s", type=int, help="of each of the four NATS publishers")
    parser.add_argument("--forked", action="store_true", help="brokers start by a fork: less CPU")
    parser.add_argument("--no-disk-stories", action="store_true", help="only rounds of kills")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
