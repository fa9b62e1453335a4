"""``make crash-stream ROUNDS=200``: kill a streaming query and all it needs, and audit its copy.

Prints one line a kill and ``crash-stream: N kills, R rows, 0 lost, 0 doubled, seed S`` at the end.
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

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "lib")]


def main(arguments: list[str] | None = None) -> int:
    """Run one campaign; return 0 when every promise held."""
    from broker.errors import HeadwaterError
    from crashkit.campaign import CampaignError
    from crashkit.stream_campaign import StreamCampaign, StreamCampaignConfig

    options = _parse(arguments)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    folder = options.folder or Path(tempfile.mkdtemp(prefix="headwater-crash-stream-"))
    print(f"crash-stream: seed {seed}, files in {folder}", flush=True)
    config = StreamCampaignConfig(
        rounds=options.rounds, seed=seed, folder=folder, sink=options.sink
    )
    began_s = time.monotonic()
    campaign = StreamCampaign(config, lambda text: print(text, flush=True))
    stopped: str | None = None
    try:
        campaign.run()
    except (CampaignError, HeadwaterError) as error:
        stopped = f"{type(error).__name__}: {error}"
    verdict, tally = campaign.verdict, campaign.tally
    for counts in (tally.kills, tally.moments, tally.places):
        print("  " + ", ".join(f"{count} x {name}" for name, count in sorted(counts.items())))
    print(f"  {tally.optimised} OPTIMIZE; {time.monotonic() - began_s:.0f} s in all")
    good = verdict.ok and stopped is None and tally.audits > 0
    if not good:
        print(f"crash-stream: FAILED {stopped or ''}\n  {verdict}\n  files are kept in {folder}")
    print(
        f"crash-stream: {tally.kills_count} kills, {campaign.rows_count} rows copied, "
        f"{campaign.recorder.acked_count} acked, {verdict.lost} lost, {verdict.doubled} doubled, "
        f"seed {seed}",
        flush=True,
    )
    if good and not options.keep and options.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="how many kills")
    parser.add_argument("--seed", type=int, help="repeat the plan of an earlier run")
    parser.add_argument(
        "--sink", choices=["delta", "ingest"], default="delta",
        help="who copies: Spark's own Delta sink, or the job ingest",
    )  # fmt: skip
    parser.add_argument("--folder", type=Path, help="keep everything here")
    parser.add_argument("--keep", action="store_true", help="keep the files also when all is good")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
