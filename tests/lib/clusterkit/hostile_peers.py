"""What is nearly a message, for a broker's cluster port and for the subjects of its replicas.

Whoever shows a member's certificate is believed when what it says *is* a message, and so is
whoever may publish on the replicas' subjects: that is the fault model. So nothing here decodes.
"""

from __future__ import annotations

import random
import ssl
from typing import Final

from broker.adapters.nats.replica_messages import encode_notice, encode_request
from broker.codec.peer import (
    control_messages,
    forwarded_writes,
    raft_messages,
    replica_messages,
)
from broker.codec.peer import frames as peer_frames
from broker.codec.peer.frames import FrameAssembler, LaneKind, encode_frame_header
from broker.errors import CorruptDataError, NotLeaderError
from broker.model.control_messages import Heartbeat
from broker.model.epochs import BrokerEpoch, LeaderEpoch
from broker.model.forwarded_writes import ForwardingMessage, WriteAnswered, WriteForwarded
from broker.model.ids import BrokerId
from broker.model.offsets import Offset
from broker.model.raft_messages import (
    AppendReply,
    Chunk,
    Forward,
    Message,
    ReadIndexRequest,
    Vote,
)
from broker.model.records import AckPolicy
from broker.model.replica_messages import NewDataNotice, ReplicaMessage
from clusterkit.hostile import Pickles, damaged
from clusterkit.running import Cluster
from headwater.local.cluster_certificates import files_of
from simkit.brokers.memory_broker import records
from simkit.brokers.replica_rigs import address, answer, fetch, stored
from simkit.raft.rig import append, entries, proposal, snapshot_of

_SENDER: Final = BrokerId("broker-1")
P: Final = address().partition_id


def member_context(cluster: Cluster, number: int) -> ssl.SSLContext:
    """Return what lets a connection in as a broker of the cluster."""
    files = files_of(cluster.plan.folder / "certificates", cluster.name(number))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(files.ca_file)
    context.load_cert_chain(files.cert_file, files.key_file)
    return context


def stranger_context() -> ssl.SSLContext:
    """Return what makes an honest TLS connection without any certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _honest() -> dict[LaneKind, list[bytes]]:
    """Return a message of each kind that matters, by lane."""
    snapshot = snapshot_of(9, 1)
    raft: list[Message] = [
        Vote(1, 5, 1, transfer=False),
        append(1, (0, 0), entries(1, 4, 1)),
        AppendReply(1, True, 5, 0, 0, 1),
        Chunk(1, snapshot.id, 0, 1, snapshot.data),
        Forward(1, proposal(1)),
        ReadIndexRequest(1, 7),
    ]
    writes: list[ForwardingMessage] = [
        WriteForwarded(
            request_id=1,
            partition_id=P,
            policy=AckPolicy.ALL,
            expected_end=None,
            rows=forwarded_writes.rows_to_bytes(records([b"x" * 300])),
        ),
        WriteAnswered(request_id=1, offsets=(Offset(0), Offset(1)), leader_epoch=1),
        WriteAnswered(request_id=1, refused=NotLeaderError("no")),
    ]
    replica: list[ReplicaMessage] = [fetch(1), answer(1), answer(2, (stored(0, b"x" * 500),))]
    return {
        LaneKind.RAFT: [raft_messages.encode(one) for one in raft],
        LaneKind.CONTROL: [
            control_messages.encode(Heartbeat(broker_epoch=BrokerEpoch(1), sent_ms=1))
        ],
        LaneKind.REPLICA: [
            b"".join(bytes(part) for part in replica_messages.encode(P, one)) for one in replica
        ],
        LaneKind.WRITES: [b"".join(forwarded_writes.encode(one)) for one in writes],
    }


def _decodes(lane: LaneKind, data: bytes) -> bool:
    try:
        match lane:
            case LaneKind.RAFT:
                raft_messages.decode(data)
            case LaneKind.CONTROL:
                control_messages.decode(data)
            case LaneKind.WRITES:
                forwarded_writes.decode(memoryview(data))
            case LaneKind.REPLICA:
                replica_messages.decode(
                    memoryview(data), sender=_SENDER, batch=lambda header, body: (header, body)
                )
    except CorruptDataError:
        return False
    return True


def _frame(lane: LaneKind, data: bytes) -> bytes:
    return encode_frame_header(lane, len(data), len(data)) + data


def members_bytes(chance: random.Random, pickles: Pickles, count: int) -> list[list[bytes]]:
    """Return what a member would never send: bad messages in good frames, and bad frames."""
    honest = _honest()
    throws: list[list[bytes]] = []
    while len(throws) < count:
        lane = chance.choice(list(LaneKind))
        data = damaged(chance, chance.choice(honest[lane]))
        if data and not _decodes(lane, data):
            throws.append([_frame(lane, data) * chance.choice((1, 3))])
    for one in pickles.payloads:
        throws += [[one], *([_frame(lane, one)] for lane in LaneKind)]
    noise = chance.randbytes(2000)
    limits = peer_frames.LANE_BYTES_MAX
    for lane in LaneKind:
        throws.append([encode_frame_header(lane, 200_000, limits[lane]) + noise])
        throws.append([encode_frame_header(lane, 1000, limits[lane] + 1) + noise])
        throws.append([encode_frame_header(lane, 0xFFFFFFFF, 0xFFFFFFFF) + noise])
        throws.append([_frame(lane, honest[lane][0])[:-1]])
    throws += [[chance.randbytes(chance.randint(1, 3000))] for _ in range(count // 2)]
    return [parts for parts in throws if not _is_believed(b"".join(parts))]


def _is_believed(data: bytes) -> bool:
    """Tell whether any message in these bytes is one."""
    assembler = FrameAssembler()
    try:
        while data:
            part = data[: len(assembler.target)]
            assembler.target[: len(part)] = part
            data = data[len(part) :]
            for lane, message in assembler.received(len(part)):
                if _decodes(lane, bytes(message)):
                    return True
    except CorruptDataError:
        pass
    return False


def subjects_bytes(chance: random.Random, pickles: Pickles, count: int) -> list[bytes]:
    """Return messages for NATS subjects: pickles, noise, envelopes that are damaged."""
    to, other = BrokerId("broker-0"), BrokerId("broker-2")
    honest = [
        encode_request(P, fetch(1), to=to),
        encode_notice("s", P, NewDataNotice(leader_epoch=LeaderEpoch(1)), sender=other, to=to),
    ]
    found = [b"", bytes(100_000), *pickles.payloads]
    for _ in range(count):
        broken = bytearray(chance.choice(honest))
        broken[chance.choice((0, 1, 2, 3, 4, 7))] ^= 1 << chance.randrange(8)
        found += [bytes(broken), honest[0][: chance.randrange(1, 8)]]
        found.append(chance.randbytes(chance.randint(1, 2000)))
    found += [b"\xb9\x0e\x43\xb4" + chance.randbytes(number) for number in range(20)]
    return found


def header_blocks(chance: random.Random, pickles: Pickles) -> list[bytes]:
    """Return header blocks of NATS messages that are none, or that hold what nobody should."""
    return [
        b"x",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id: " + b"i" * 5000 + b"\r\n\r\n",
        b"NATS/1.0\r\n" + b"A: b\r\n" * 3000 + b"\r\n",
        chance.randbytes(300),
        *(b"NATS/1.0\r\nNats-Msg-Id: " + one + b"\r\n\r\n" for one in pickles.payloads[:6]),
    ]
