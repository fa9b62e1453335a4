"""One file per outside world: NATS, Arrow Flight, disk, metrics."""
