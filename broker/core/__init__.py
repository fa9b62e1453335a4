"""Sans-I/O machines: decisions of the log, taken in plain synchronous code."""
