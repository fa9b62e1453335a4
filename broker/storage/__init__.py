"""The local log over the Files port: segments, index, epochs, recovery. No policy."""
