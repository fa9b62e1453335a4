"""Values of the log: ids, offsets, epochs, streams, cuts, certificates. Standard library only."""
