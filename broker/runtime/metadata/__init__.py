"""The metadata log over Raft, and who follows it."""
