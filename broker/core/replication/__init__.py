"""How a partition's replicas follow its leader: state machines without I/O."""
