"""The table of a stream, its ledger, and Delta."""
