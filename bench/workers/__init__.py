"""Programs that a measure starts as separate processes: ``python -m bench.workers.<name> ...``.

Each takes its task as arguments and prints its result as JSON lines, so that its memory and its CPU
time can be told from those of other work.
"""
