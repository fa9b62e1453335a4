"""The files of a Raft member."""
