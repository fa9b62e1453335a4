"""pysyncobj 0.3.17 as a Raft member, corrected: the second implementation beside our own."""
