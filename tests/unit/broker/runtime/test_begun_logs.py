"""A log that takes the place of another one, and the promises of all logs."""

from __future__ import annotations

import random

from broker.core.dedup import ProducerTable
from broker.errors import LogFailedError
from broker.model.epoch_history import EpochHistory
from broker.model.offsets import Offset
from broker.runtime.replica_folders import ReplicaFolders
from broker.storage.promises.promises import Promises
from simkit.disk.disk import SimDisk
from simkit.disk.scarce_files import CountedFiles
from simkit.log.batches import PARTITION, SMALL


class FailingPromises(Promises):
    """After some syncs the disk confirms no more."""

    syncs_left = 0

    def sync(self) -> None:
        """Sync, or fail."""
        if not self.syncs_left:
            raise LogFailedError("simulated: fdatasync failed")
        self.syncs_left -= 1
        super().sync()


def test_a_log_that_could_not_take_its_place_leaves_no_file_open() -> None:
    """The replica may try again, and each try would take a descriptor more."""
    for allowed in range(10):
        process = SimDisk(random.Random(1)).files()
        files, promises = CountedFiles(process), FailingPromises(process)
        promises.syncs_left = allowed
        begin_log = ReplicaFolders(files, promises).beginner(PARTITION, SMALL)
        try:
            begin_log(Offset(5), EpochHistory(), ProducerTable().to_state())
        except LogFailedError:
            assert not files.opened
        else:
            assert allowed, "no sync is needed"
            return
    raise AssertionError("a log needs fewer syncs")
