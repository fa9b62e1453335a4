"""The shell of one partition: its turns, its queue, its writes and their answers."""
