"""``make crash ROUNDS=50``: kill a loaded broker again and again, and audit what it acknowledged.

Prints one line a round and ``crash: N rounds, A acked, 0 lost, 0 doubled, seed S`` at the end.
Exits with 1 on any violation and keeps the directories then; ``--seed`` repeats the plan.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "lib")]


def main(arguments: list[str] | None = None) -> int:
    """Run one campaign; return 0 when every promise held."""
    from broker.errors import HeadwaterError
    from crashkit.campaign import Campaign, CampaignConfig, CampaignError

    options = _parse(arguments)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    folder = options.folder or Path(tempfile.mkdtemp(prefix="headwater-crash-"))
    print(f"crash: seed {seed}, files in {folder}", flush=True)
    config = CampaignConfig(
        rounds=options.rounds,
        seed=seed,
        folder=folder,
        s3=options.s3,
        check_every=options.check_every,
        spark_every=options.spark_every,
        records_per_s=options.records_per_s or (300 if options.s3 == "local" else 100),
    )
    began_s = time.monotonic()
    campaign = Campaign(config, lambda text: print(text, flush=True))
    stopped: str | None = None
    try:
        campaign.run()
    except (CampaignError, HeadwaterError) as error:
        stopped = f"{type(error).__name__}: {error}"
    verdict, tally = campaign.checker.verdict, campaign.tally
    for name, count in sorted(tally.moments.items(), key=lambda one: -one[1]):
        print(f"  {count:4d} x killed at {name}")
    if tally.recovery_s:
        print(
            f"  {tally.kills} kills, {tally.recovery_kills} more in recovery, "
            f"{tally.nats_restarts} nats-server restarts, {tally.pauses} freezes, "
            f"{tally.audits} audits ({tally.spark_reads} also by Spark); "
            f"ready after {median(tally.recovery_s):.2f} s (median), "
            f"{max(tally.recovery_s):.2f} s (worst); {time.monotonic() - began_s:.0f} s in all"
        )
    good = verdict.ok and stopped is None
    if not good:
        print(f"crash: FAILED {stopped or ''}\n  {verdict}\n  files are kept in {folder}")
        (folder / "violations.txt").write_text(f"seed {seed}\n{stopped}\n{verdict}\n")
    print(
        f"crash: {tally.kills} rounds, {campaign.recorder.acked_count} acked, {verdict.lost} lost, "
        f"{verdict.doubled} doubled, seed {seed}",
        flush=True,
    )
    if good and not options.keep and options.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, help="repeat the plan of an earlier run")
    parser.add_argument("--s3", choices=["local", "moto"], default="local")
    parser.add_argument("--check-every", type=int, default=5, metavar="ROUNDS")
    parser.add_argument(
        "--spark-every", type=int, default=10, metavar="ROUNDS", help="0: without Spark"
    )
    parser.add_argument("--records-per-s", type=int, help="of each of the four NATS publishers")
    parser.add_argument("--folder", type=Path, help="keep everything here")
    parser.add_argument("--keep", action="store_true", help="keep the files also when all is good")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
