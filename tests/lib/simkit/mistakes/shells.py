"""Known ways to get a shell wrong, one switch each. The house has to notice every one.

A mutant replaces one step of the product's shells for the length of a ``with``. Its docstring is
the bug.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from broker.model.epochs import BrokerEpoch
from broker.ports.pumps import NEVER_MS
from broker.runtime.background import Background
from broker.runtime.cluster import questions, registration
from broker.runtime.cluster.beats import MemberBeats
from broker.runtime.cluster.controller import ControllerPump, _Passed
from broker.runtime.cluster.errands import AskingNewest, GivingUp
from broker.runtime.cluster.member import ClusterMember
from broker.runtime.hosted_partitions import HostedPartitions
from broker.runtime.ingest.sessions import _read, note_clean_stop
from broker.runtime.metadata import newest_told
from broker.runtime.metadata.follower import MetadataFollower
from broker.runtime.opened_marks import OpenedMarks
from broker.runtime.partition.commits import Commits
from broker.runtime.partition.groups import CommitGroup
from broker.runtime.partition.id_recovery import IdRecovery
from broker.runtime.partition.local_log import LocalLog
from broker.runtime.partition.queue import Newest, TurnQueue
from broker.runtime.partition.replica_shell import ReplicaShell
from broker.runtime.partition.retry_tables import RetryTables
from broker.runtime.replica_folders import ReplicaFolders
from broker.storage.promises.promises import Promises
from broker.storage.stream_folders import log_folder
from simkit.replacing import replaced, together

Mutant = Callable[[], Any]  # a context manager


def answer_before_the_sync() -> Any:
    """Report written records as synced before the device has synced them."""

    def facts(self: Any) -> Any:
        self._interval = True
        return original(self)

    def sync(self: Any) -> None:
        self.sync_count += 1
        self.synced_ms = self._now_ms()

    original: Any = ReplicaShell._facts
    return together(replaced(ReplicaShell, "_facts", facts), replaced(ReplicaShell, "_sync", sync))


def follower_answers_before_the_sync() -> Any:
    """Report fetched records as synced when they are written (Liftbridge, Kafka; D1)."""

    def facts(self: Any) -> Any:
        self._interval = self._interval or self.__dict__.get("copies", False)
        return original(self)

    def append_stored(self: Any, batches: Any) -> None:
        self.copies = True
        append(self, batches)

    def sync(self: Any) -> None:
        if self._replica.follower is None:
            synced(self)

    original: Any = ReplicaShell._facts
    append: Any = ReplicaShell._append_stored
    synced: Any = ReplicaShell._sync
    return together(
        replaced(ReplicaShell, "_facts", facts),
        replaced(ReplicaShell, "_append_stored", append_stored),
        replaced(ReplicaShell, "_sync", sync),
    )


def retry_table_of_the_old_leader() -> Any:
    """Truncate a log, and keep the retry table of the removed records (A24)."""
    return replaced(LocalLog, "shrunk", lambda self: self.watch_segments())


def reassignment_is_not_notified() -> Any:
    """Leave everything as it was where a partition is to move to other brokers (A23)."""

    def reconcile(self: Any, state: Any, patience_s: float) -> Any:
        before = self._state.partitions
        rows = {
            uuid: tuple(
                before[uuid][number] if row.target and uuid in before else row
                for number, row in enumerate(rows)
            )
            for uuid, rows in state.partitions.items()
        }
        return original(self, replace(state, partitions=rows), patience_s)

    original: Any = HostedPartitions._reconcile
    return replaced(HostedPartitions, "_reconcile", reconcile)


def clean_stop_believed_twice() -> Any:
    """Leave the note of a clean stop where it is, and ask no session of it."""

    def take_clean_stop(files: Any) -> Any:
        found = original(files)
        if found is not None:
            note_clean_stop(files, found)
        known = _read(files) if found is not None else ()
        return known[-1] if known else None

    original: Any = vars(registration)["take_clean_stop"]
    return replaced(registration, "take_clean_stop", take_clean_stop)


def every_end_is_a_clean_stop() -> Any:
    """Take every end of a process for a clean stop, a kill too."""

    def take_clean_stop(files: Any) -> Any:
        original(files)
        known = _read(files) if files.exists("sessions.json") else ()
        return known[-1] if known else None

    original: Any = vars(registration)["take_clean_stop"]
    return replaced(registration, "take_clean_stop", take_clean_stop)


def message_ids_are_not_rebuilt() -> Any:
    """Begin to lead without the message ids of the records in the log."""

    def begin_leading(self: Any, *_: Any) -> None:
        self.window = self._new_window()

    return replaced(RetryTables, "begin_leading", begin_leading)


def writes_do_not_wait_for_message_ids() -> Any:
    """Take writes while the message ids of the window are still being read."""
    return replaced(IdRecovery, "is_held", False)


def followers_forget_producers() -> Any:
    """Remember producers only where they publish; a new leader meets their retries as news."""

    def copied(_: Any, batches: Any) -> int:
        return sum(one.header.size for one in batches)

    return replaced(RetryTables, "copied", copied)


def group_is_not_remembered() -> Any:
    """Write a group, and leave the retry tables as they were."""
    return replaced(CommitGroup, "written", lambda _: None)


def late_views_are_not_followed() -> Any:
    """Skip the reconcile after a slow replica has taken its view."""

    def lead_changed(self: Any, address: Any, *, leads: bool) -> None:
        follower, self._follower = self._follower, mock.Mock()
        original(self, address, leads=leads)
        self._follower = follower

    original: Any = ClusterMember.lead_changed
    return together(
        replaced(Background, "reconcile_soon", lambda _: None),
        replaced(ClusterMember, "lead_changed", lead_changed),
    )


def every_other_change_is_missed() -> Any:
    """Drop every second notification of a change of the metadata."""

    def changed(self: Any) -> None:
        self.dropped = not getattr(self, "dropped", False)
        if not self.dropped:
            original(self)

    original: Any = MetadataFollower.changed
    return replaced(MetadataFollower, "changed", changed)


def older_view_wins() -> Any:
    """Let the view that waits for a turn stand when a newer one comes."""

    def begin(self: Any, value: Any) -> Any:
        with self._lock:
            if self._call is not None:
                return self._call
        return original(self, value)

    original: Any = Newest.begin
    return replaced(Newest, "begin", begin)


def views_are_taken_out_of_order() -> Any:
    """Take each view in a call of its own, newest first."""

    def begin(self: Any, value: Any) -> Any:
        before, self.last = getattr(self, "last", value), value
        self._queue.begin(lambda: self._take(value))
        return self._queue.begin(lambda: self._take(before))

    return replaced(Newest, "begin", begin)


def opened_with_the_old_broker_epoch() -> Any:
    """Open replicas as the process before this one."""

    def registered(self: Any, broker_epoch: BrokerEpoch) -> None:
        original(self, BrokerEpoch(max(1, broker_epoch - 1)))

    original: Any = HostedPartitions.registered
    return replaced(HostedPartitions, "registered", registered)


def second_epoch_is_not_taken() -> Any:
    """Open logs under the epoch of the first registration, when damage needed a second one."""

    def registered(self: Any, broker_epoch: BrokerEpoch) -> None:
        self.first_epoch = getattr(self, "first_epoch", broker_epoch)
        original(self, self.first_epoch)

    original: Any = HostedPartitions.registered
    return replaced(HostedPartitions, "registered", registered)


def given_up_without_waiting() -> Any:
    """Set damaged logs aside at once, whether the metadata still counts them or not."""

    def turn(self: Any, _: int) -> int:
        given_up, self._left = self._left, []
        for one in given_up:
            self._withdraw(one)
        if not self._is_over:
            self._is_over = True
            self._answered(given_up)
        return NEVER_MS

    return replaced(GivingUp, "turn", turn)


def opened_is_not_marked() -> Any:
    """Open a log for the first time, and let the metadata not know that it is held."""

    def make(self: Any, partition_ids: Any) -> None:
        self._marked.update(partition_ids)

    return replaced(OpenedMarks, "make", make)


def damaged_replica_is_opened_as_new() -> Any:
    """Take a log that is absent, or shorter than it was promised, for one that begins."""

    def open_log(self: Any, partition_id: Any, config: Any, *, held: bool) -> Any:
        log = original(self, partition_id, config, held=held)
        if not log.recovery.damaged:
            return log
        log.close()
        self._files.remove_folder(log_folder(partition_id))
        self._promises.replica(partition_id).remove()
        return original(self, partition_id, config, held=False)

    original: Any = ReplicaFolders.open_log
    return replaced(ReplicaFolders, "open_log", open_log)


def session_is_registered_before_it_is_durable() -> Any:
    """Register with a session whose file has no name on the disk yet."""

    def begin_session(files: Any) -> Any:
        with mock.patch.object(files, "sync_folder"):
            return original(files)

    original: Any = vars(registration)["begin_session"]
    return replaced(registration, "begin_session", begin_session)


def lease_is_for_ever() -> Any:
    """Go on as leader however long ago the last heartbeat was answered."""

    def take_lease(self: Any, answer: Any, _now_ms: int) -> None:
        if answer.granted:
            self.lease_until_ms = NEVER_MS

    return replaced(MemberBeats, "take_lease", take_lease)


def newest_is_told_without_a_lease() -> Any:
    """Tell the committed end as a leader or a former leader, without a lease."""

    def told(driver: Any, asked: Any) -> Any:
        if driver is None or not driver.leads:
            return original(driver, asked)
        sure = SimpleNamespace(
            reads=driver.reads,
            replication=SimpleNamespace(newest_committed=driver.reads.high_watermark),
            health=SimpleNamespace(lost_end=None),
            lost_leadership=None,
            records_left=driver.records_left,
        )
        return original(sure, asked)

    original: Any = newest_told.newest_told
    return replaced(newest_told, "newest_told", told)


def questions_are_numbered_from_one() -> Any:
    """Number questions to leaders from one in every process; only the number is compared."""

    def hear(self: Any, told: Any) -> None:
        self._told.append(told)
        self._wake()

    return together(
        replaced(questions, "first_request_id", lambda _: 1),
        replaced(AskingNewest, "_hear", hear),
    )


def leases_without_a_barrier() -> Any:
    """Grant a lease at once, although another controller may be active by now."""

    def begin_barrier(self: Any) -> None:
        office = self._metadata.office
        heartbeats, self._waiting = tuple(self._waiting.items()), {}
        if office is not None and (heartbeats or self._taking is not None):
            self._passed(_Passed(office, None, heartbeats), self._next_tick_ms - 50)

    return replaced(ControllerPump, "_begin_barrier", begin_barrier)


def messages_are_not_counted_out() -> Any:
    """Count a message that was taken as one that waits."""
    return replaced(TurnQueue, "_count_out_locked", lambda *_: None)


def end_of_turn_forgets_what_came() -> Any:
    """Schedule no turn for work that came during a turn."""

    def end_turn(self: Any, *, held: bool = False) -> None:
        self._scheduled = False

    return replaced(TurnQueue, "end_turn", end_turn)


def answers_are_not_abandoned() -> Any:
    """Keep publishes of a leadership that ended, and answer them in the next one."""
    return replaced(Commits, "abandon", lambda *_: None)


def promise_without_room_is_a_failed_disk() -> Any:
    """Give the file of promises up because a full disk has refused a write of it."""

    def write(self: Any, *slot: Any, **values: Any) -> None:
        try:
            original(self, *slot, **values)
        except OSError as error:
            self._fail("a write", error)

    original: Any = Promises.write
    return replaced(Promises, "write", write)


MUTANTS: Final[dict[str, Mutant]] = {
    one.__name__: one
    for one in (
        answer_before_the_sync,
        follower_answers_before_the_sync,
        retry_table_of_the_old_leader,
        reassignment_is_not_notified,
        message_ids_are_not_rebuilt,
        writes_do_not_wait_for_message_ids,
        followers_forget_producers,
        group_is_not_remembered,
        late_views_are_not_followed,
        every_other_change_is_missed,
        older_view_wins,
        views_are_taken_out_of_order,
        opened_with_the_old_broker_epoch,
        second_epoch_is_not_taken,
        given_up_without_waiting,
        opened_is_not_marked,
        damaged_replica_is_opened_as_new,
        session_is_registered_before_it_is_durable,
        lease_is_for_ever,
        newest_is_told_without_a_lease,
        leases_without_a_barrier,
        messages_are_not_counted_out,
        end_of_turn_forgets_what_came,
        answers_are_not_abandoned,
        promise_without_room_is_a_failed_disk,
    )
}

# Noticed by a unit test: a life meets it so seldom that every change of the product moves its seed.
BY_HAND: Final[dict[str, Mutant]] = {
    one.__name__: one for one in (questions_are_numbered_from_one,)
}

INTERVAL_MUTANTS: Final[dict[str, Mutant]] = {
    one.__name__: one for one in (clean_stop_believed_twice, every_end_is_a_clean_stop)
}

# These are hunted in mixed lives.
MIXED: Final = frozenset(
    {
        "follower_answers_before_the_sync",
        "retry_table_of_the_old_leader",
        "reassignment_is_not_notified",
    }
)
LOST_FAULTS: Final = frozenset({"folder", "rot", "kill", "slow"})
FULL_FAULTS: Final = frozenset({"full-copying", "kill", "power", "cut"})
# Faults that make a mistake likely to show; without an entry the seed draws them.
BIASED: Final[dict[str, frozenset[str]]] = {
    "second_epoch_is_not_taken": LOST_FAULTS,
    "given_up_without_waiting": LOST_FAULTS,
    "opened_is_not_marked": LOST_FAULTS,
    "damaged_replica_is_opened_as_new": LOST_FAULTS,
    "session_is_registered_before_it_is_durable": frozenset({"all", "power"}),
    "promise_without_room_is_a_failed_disk": FULL_FAULTS,
    "lease_is_for_ever": frozenset({"cut", "one-way"}),
    "newest_is_told_without_a_lease": frozenset({"cut", "one-way"}),
    "leases_without_a_barrier": frozenset({"cut", "one-way"}),
    "older_view_wins": frozenset({"balance", "reassign", "kill", "office"}),
    "views_are_taken_out_of_order": frozenset({"balance", "reassign", "kill", "office"}),
}
# The first seed that is known to show it, if that is not 0.
FIRST_SEEDS: Final = {
    "message_ids_are_not_rebuilt": 1,
    "writes_do_not_wait_for_message_ids": 6,
    "damaged_replica_is_opened_as_new": 3,
    "late_views_are_not_followed": 36,
    "retry_table_of_the_old_leader": 40,
    "older_view_wins": 74,
    "views_are_taken_out_of_order": 38,
    "second_epoch_is_not_taken": 2,
    "given_up_without_waiting": 40,
    "opened_is_not_marked": 9,
    "session_is_registered_before_it_is_durable": 1,
    "lease_is_for_ever": 7,
    "newest_is_told_without_a_lease": 1,
    "leases_without_a_barrier": 34,
    "messages_are_not_counted_out": 10,
    "end_of_turn_forgets_what_came": 80,
    "answers_are_not_abandoned": 168,
    "promise_without_room_is_a_failed_disk": 36,
    "every_other_change_is_missed": 4,
    "followers_forget_producers": 3,
}
QUICK: Final = (  # in every `make test`; the others are hunted by `make sim` and `make mutants`
    "answer_before_the_sync",
    "message_ids_are_not_rebuilt",
    "late_views_are_not_followed",
    "views_are_taken_out_of_order",
    "opened_is_not_marked",
    "damaged_replica_is_opened_as_new",
    "messages_are_not_counted_out",
    "lease_is_for_ever",
    "leases_without_a_barrier",
    "promise_without_room_is_a_failed_disk",
)
