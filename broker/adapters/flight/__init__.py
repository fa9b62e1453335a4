"""The Flight server: reads, writes and operations of clients."""
