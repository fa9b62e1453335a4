"""Client and broker agree on how many batches may be in flight."""

from __future__ import annotations

from broker.core.dedup import ProducerTable
from broker.model.ids import ProducerId
from broker.model.offsets import Offset
from headwater.client.producer import WINDOW_BATCHES_MAX


def test_a_full_window_whose_answers_were_lost_is_recognised() -> None:
    """Every batch that a producer may have in flight is found again by the broker's table.

    With a wider window the oldest batch was answered as a sequence gap although it was stored.
    """
    table = ProducerTable()
    producer = ProducerId(7)
    for number in range(WINDOW_BATCHES_MAX + 10):
        table.add(producer, number, 1, Offset(number))
    for number in range(10, WINDOW_BATCHES_MAX + 10):
        assert table.find(producer, number, 1) == number
