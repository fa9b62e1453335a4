"""The library's clock, nodes, transport and configuration."""

from __future__ import annotations

from typing import Any, Final

from broker.core.raft.config import RaftConfig
from broker.model.raft import NodeId

_NEVER: Final = 1 << 60


class ToldClock:
    """A clock with the time of the step; in the library's seconds it begins at one, not at zero."""

    def __init__(self) -> None:
        self.now_ms = 0

    def seconds(self) -> float:
        """Return the time in the library's seconds."""
        return 1.0 + self.now_ms / 1000


class _Port:
    """Replaces the library's transport."""

    member: Any

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        """Pass a message of the library on."""
        self.member.library_sends(node, message)
        return True


def port(module: Any, member: Any) -> Any:
    """Return a transport with the library's interface that passes everything to the member."""
    made = type("Port", (_Port, module.Transport), {})(None, None, None)
    made.member = member
    return made


def peer(module: Any, config: RaftConfig, name: NodeId) -> Any:
    """Return the library's node for a member, with the same hash in every process."""
    position = config.members.index(name)
    return type("Peer", (module.Node,), {"__hash__": lambda _: position})(name)


def configuration(module: Any, config: RaftConfig, on_state_changed: Any) -> Any:
    """Return the library's configuration: it uses no disk, no socket and no pickle."""
    shortest, longest = config.election_ms_min / 1000, config.election_ms_max / 1000
    beat = min(config.heartbeat_ms / 1000, shortest / 3.001)  # it needs over three in a timeout
    return module.SyncObjConf(
        autoTick=False,
        password=None,
        journalFile=None,
        fullDumpFile=None,
        useFork=False,
        dynamicMembershipChange=False,
        commandsWaitLeader=False,
        appendEntriesUseBatch=True,  # without it the library opens a pipe to wake its poller
        appendEntriesPeriod=beat,
        appendEntriesBatchSizeBytes=config.append_bytes_max + 1,
        raftMinTimeout=shortest,
        raftMaxTimeout=longest,
        leaderFallbackTimeout=shortest,  # check-quorum (L3)
        connectionTimeout=longest,
        logCompactionMinEntries=_NEVER,
        logCompactionMinTime=_NEVER,
        logCompactionSplit=False,
        onStateChanged=on_state_changed,
    )
