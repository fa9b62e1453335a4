"""The pump that registers this process: it proposes a new session until that is committed.

The session is durable in the folder before it is proposed. At the next start it proves that this is
the same folder, so the metadata must never have a session that the folder lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import structlog

from broker.core.metadata.commands import RegisterBroker
from broker.core.metadata.state import FEATURE_LEVEL_MAX
from broker.errors import HeadwaterError, NotLeaderError, ShuttingDownError, UnavailableError
from broker.model.epochs import BrokerEpoch
from broker.model.ids import BrokerId
from broker.ports.pumps import NEVER_MS
from broker.ports.system import Files
from broker.runtime.ingest.sessions import begin_session, note_clean_stop, take_clean_stop
from broker.runtime.metadata.metadata_log import ProposingMetadata

_log = structlog.get_logger(__name__)

_AGAIN_MS: Final = 500
_PROPOSE_MS: Final = 5_000


class Registration:
    """One registration of one process. A second registration needs a new object."""

    def __init__(
        self,
        *,
        me: BrokerId,
        addresses: Mapping[str, str],
        files: Files,
        metadata: ProposingMetadata,
        stop_asked: Callable[[], bool],
        wake: Callable[[], None],
        answered: Callable[[str, BrokerEpoch], None],
    ) -> None:
        """Write a new session durably to the folder; ``wake`` is called when a turn is due.

        ``answered`` gets the session and the broker epoch when this process is registered.
        """
        self._me = me
        self._files = files
        self._metadata = metadata
        self._stop_asked = stop_asked
        self._wake = wake
        self._answered = answered
        stopped = take_clean_stop(files)  # read first: the note is about the former session
        self.session, known = begin_session(files)
        self._clean = stopped is not None and known[-1:] == (stopped,)
        self._command = RegisterBroker(
            broker=me,
            session=self.session,
            known_sessions=known,
            clean=self._clean,
            addresses=addresses,
            features_max=FEATURE_LEVEL_MAX,
        )
        self._answers: list[HeadwaterError | None] = []  # at most one: the result of the proposal
        self._again_ms = 0
        self.is_proposed = False  # proposed, and without a result yet
        self.broker_epoch: BrokerEpoch | None = None  # set when this process is registered

    def turn(self, now_ms: int) -> int:
        """Propose, or take the result. Proposing the same session again registers once.

        Raises:
            HeadwaterError: the metadata refuses this process.
            ShuttingDownError: it was asked to stop, and nothing is under way.
        """
        if self._answers:
            self.is_proposed = False
            self._take(self._answers.pop(), now_ms)
        if self.broker_epoch is not None or self.is_proposed:
            return NEVER_MS
        if self._stop_asked():
            self._give_up()
            raise ShuttingDownError("stopped before it was registered")
        if now_ms < self._again_ms:
            return self._again_ms
        self.is_proposed = True
        self._metadata.propose_soon(self._command, self._hear, timeout_ms=_PROPOSE_MS)
        return NEVER_MS

    def _give_up(self) -> None:
        """Restore the note of a clean stop: no log was opened in this session."""
        if self._clean:
            note_clean_stop(self._files, self.session)

    def _hear(self, error: HeadwaterError | None) -> None:
        self._answers.append(error)
        self._wake()

    def _take(self, error: HeadwaterError | None, now_ms: int) -> None:
        if isinstance(error, UnavailableError):
            _log.info("waiting_for_controllers", reason=error.message)
            self._again_ms = now_ms + _AGAIN_MS
            return
        if error is not None:
            raise error
        registered = self._metadata.state.brokers.get(self._me)
        if registered is None or registered.session != self.session:
            raise NotLeaderError(
                f"another process has registered as broker {self._me}: stop one of the two",
                broker=self._me,
            )
        self.broker_epoch = registered.epoch
        _log.info("registered", broker_epoch=self.broker_epoch)
        self._answered(self.session, self.broker_epoch)
