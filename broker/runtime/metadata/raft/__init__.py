"""One member of the Raft group that replicates the metadata, as a pump."""
