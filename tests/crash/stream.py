"""``make crash-stream ROUNDS=200``: kill a streaming query and all it needs, and audit its copies.

Prints one line a kill and ``crash-stream: N kills, M records acknowledged, … 0 lost, 0 doubled, 0
out of order, seed S`` at the end; the raw numbers go to ``out/crash-stream.json``. Exits with 1 on
any violation, or if a kind of kill was not met in each phase, and keeps the directories then.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "lib")]

_KILLS_PER_QUERY = 40


def main(arguments: list[str] | None = None) -> int:
    """Run one campaign; return 0 when every promise held and everything was met."""
    from broker.errors import HeadwaterError
    from crashkit import running
    from crashkit.stream_campaign import StreamCampaign, StreamCampaignConfig

    parser = running.options(__doc__ or "")
    parser.add_argument(
        "--sink", choices=["files", "delta", "ingest"], default="files",
        help="who copies: a sink of Spark's own, or the job ingest",
    )  # fmt: skip
    parser.add_argument("--queries", type=int, help="how many, one after the other, from earliest")
    parser.add_argument("--records-per-s", type=int, default=15, help="of each of four publishers")
    given = parser.parse_args(arguments)
    name = "crash-stream" if given.sink == "files" else f"crash-stream-{given.sink}"
    run = running.Run.begin(name, given)
    config = StreamCampaignConfig(
        rounds=given.rounds,
        seed=run.seed,
        folder=run.folder,
        archive=ROOT / "out" / "crash-stream.jsa",  # any sink may use it
        sink=given.sink,
        queries=given.queries or -(-given.rounds // _KILLS_PER_QUERY),
        records_per_s=given.records_per_s,
    )
    campaign = StreamCampaign(config, lambda text: print(text, flush=True))
    failures = []
    try:
        campaign.run()
        failures = campaign.failures
    except (running.CampaignError, HeadwaterError) as error:
        failures = [f"{type(error).__name__}: {error}"]
    facts, tally = campaign.facts(), campaign.tally
    for word in ("by_what", "by_phase", "by_moment", "upkeep", "upkeep_failed"):
        counts = [f"{times} x {what}" for what, times in facts[word].items()]
        print(f"  {word.replace('_', ' ')}: {', '.join(counts) or 'nothing'}")
    print(f"  {tally.moved} batches went cold between plan and commit")
    summary = (
        f"{len(tally.kills)} kills, {campaign.recorder.acked_count} records acknowledged, "
        f"{len(tally.queries)} copies of {campaign.rows_count} rows"
    )
    return run.end(campaign.verdict, failures, summary, facts)


if __name__ == "__main__":
    sys.exit(main())
