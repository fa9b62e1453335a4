"""The broker as a process: composition, samples for metrics, logging, memory."""
