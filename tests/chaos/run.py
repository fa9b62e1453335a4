"""``make chaos MINUTES=30``: break a cluster of real processes, and judge what it acknowledged.

Prints one line a story and ``chaos: N stories, K all-node kills, A acked, 0 lost, 0 doubled, 0
diverged, 0 group violations, seed S`` at the end. Exits with 1 on any violation, and when a story
was never reached; the directories are kept then. ``--seed`` repeats the plan; ``--plan`` only
prints it. ``make crash-cluster ROUNDS=20`` tells only the stories in which every broker dies.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaoskit.stories import Story

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "lib")]


def main(arguments: list[str] | None = None) -> int:
    """Run one campaign; return 0 when every promise held and every story was reached."""
    from chaoskit.campaign import ChaosCampaign, ChaosConfig, errors_of_a_run
    from chaoskit.stories import STORIES
    from plantkit.planting import plant

    options = _parse(arguments)
    plant(options.plant)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    chosen = tuple(one for one in STORIES if not options.only or options.only in one.name)
    if options.plan:
        return _print_plan(options, seed, chosen)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="headwater-chaos-"))
    print(f"chaos: seed {seed}, files in {folder}", flush=True)
    config = ChaosConfig(
        minutes=options.minutes,
        seed=seed,
        folder=folder,
        brokers=options.brokers,
        partitions=options.partitions,
        records_per_s=options.records_per_s,
        stories=chosen,
        times=options.times,
        raft=options.raft,
        secure=options.secure,
        forked=options.forked,
    )
    began_s, stopped = time.monotonic(), None
    campaign = ChaosCampaign(config, lambda text: print(text, flush=True))
    try:
        campaign.run()
    except errors_of_a_run() as error:
        stopped = f"{type(error).__name__}: {error}"
    finally:
        campaign.close()
    tally, verdict = campaign.tally, campaign.verdict
    for name in campaign.schedule.names():
        stalls = tally.stalls_s.get(name, [])
        worst = f", at most {max(stalls):.2f} s without acks" if stalls else ""
        print(f"  {tally.reached[name]:3d} of {tally.told[name]:3d} reached: {name}{worst}")
    for group in campaign.groups:
        print(f"  {group}")
    if campaign.cluster.guards is not None:
        took_s = campaign.cluster.guards.took_s
        slowest_s = max(took_s, default=0.0)
        print(f"  {len(took_s)} changes of access, in force after {slowest_s:.2f} s at most")
    unreached = tally.unreached(campaign.schedule)
    of_groups = sum(len(group.violations) for group in campaign.groups)
    good = verdict.ok and stopped is None and not unreached and not of_groups
    if not good:
        examples = [one for group in campaign.groups for one in group.examples()]
        told = "\n  ".join([str(verdict), *examples])
        print(f"chaos: FAILED {stopped or ''}\n  {told}\n  files are kept in {folder}")
        (folder / "violations.txt").write_text(f"seed {seed}\n{stopped}\n  {told}\n")
    print(
        f"chaos: {sum(tally.told.values())} stories, {tally.all_killed} all-node kills, "
        f"{campaign.recorder.acked_count} acked, {verdict.lost} lost, {verdict.doubled} doubled, "
        f"{verdict.diverged} diverged, {of_groups} group violations, "
        f"{len(unreached)} never reached, {time.monotonic() - began_s:.0f} s, seed {seed}",
        flush=True,
    )
    if good and not options.keep and options.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


def _print_plan(options: argparse.Namespace, seed: int, chosen: tuple[Story, ...]) -> int:
    from chaoskit.permits import namespaces_refused, refused_needs
    from chaoskit.schedule import plan

    made = plan(
        seed,
        minutes=options.minutes,
        brokers=options.brokers,
        partitions=options.partitions,
        refused=refused_needs(secure=options.secure),
        stories=chosen,
        times=options.times,
    )
    print(f"network namespaces: {namespaces_refused() or 'permitted (proxies are used)'}")
    for number, entry in enumerate(made.entries, 1):
        print(f"{number:4d} partition {entry.partition}: {entry.story.name}")
    for name, why in made.skipped.items():
        print(f"skipped: {name}: {why}")
    print(f"about {made.estimated_ms / 60_000:.1f} minutes, seed {seed}")
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    from plantkit.planting import known_plants

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5, help="each story is told in any case")
    parser.add_argument("--brokers", type=int, choices=[3, 5], default=5)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--records-per-s", type=int, default=100, help="of each NATS publisher")
    parser.add_argument("--raft", choices=["own", "pysyncobj"], default="own")
    parser.add_argument("--seed", type=int, help="repeat the plan of an earlier run")
    parser.add_argument("--only", metavar="TEXT", help="stories with this in their name")
    parser.add_argument("--times", type=int, default=0, help="tell so many stories at least")
    parser.add_argument("--plan", action="store_true", help="print what would be done")
    parser.add_argument("--plant", choices=known_plants(), help="a bug to be found")
    parser.add_argument("--secure", action="store_true", help="TLS, identities, grants, quotas")
    parser.add_argument("--folder", type=Path, help="keep everything here")
    parser.add_argument("--forked", action="store_true", help="brokers start by a fork: less CPU")
    parser.add_argument("--keep", action="store_true", help="keep the files also when all is good")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
