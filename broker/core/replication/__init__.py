"""How a partition's replicas follow its leader: pure machines and the messages between them."""
