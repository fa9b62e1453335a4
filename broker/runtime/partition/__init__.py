"""One partition: its owner's turns, its queue, its writes and what they wait for."""
