"""The size estimate of NATS ingest against the size that the log's codec produces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.adapters.nats.liftbridge_messages import decode_publish
from broker.codec.nats.headers import encode
from broker.codec.nats.records import RecordRules, to_records
from broker.codec.nats.stream import MessageBatch
from broker.codec.record_batch import prepare
from broker.model.stream import StreamConfig
from cases import examples

HEADERS = st.lists(
    st.tuples(st.sampled_from(["A", "Headwater-Key", "Long-Header-Name"]), st.just(b"v" * 9)),
    max_size=3,
)
MESSAGES = st.lists(
    st.tuples(st.binary(max_size=40), st.sampled_from([b"s.a", b"s.bb"]), st.booleans(), HEADERS),
    min_size=1,
    max_size=40,
)


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@examples(60)
@given(messages=MESSAGES, limit=st.integers(4096, 8192))
def test_the_estimate_is_an_upper_bound_and_parts_fit(
    codec: str, messages: list[tuple[bytes, bytes, bool, list[tuple[str, bytes]]]], limit: int
) -> None:
    """No part is larger in the log than it claims, or than a segment; no row is lost."""
    batch = MessageBatch(1)
    for row, (payload, subject, asks, headers) in enumerate(messages):
        batch.payloads.append(payload)
        batch.runs.append((row, subject))
        if asks:
            batch.replies[row] = b"in.%d" % row
        if headers:
            batch.blocks[row] = encode(headers)
    rules = RecordRules.of("s", StreamConfig(subject="s.*", segment_bytes_max=limit), 0)
    parts, refused = to_records(batch, rules, decode_publish)
    assert refused == []
    values: list[bytes] = []
    for part in parts:
        size = prepare(part.batch, now_us=1, codec=codec).size
        assert size <= part.size_bytes
        assert size <= limit
        values += part.batch.column("value").to_pylist()
    assert values == [payload for payload, _, _, _ in messages]
