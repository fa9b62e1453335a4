"""Real servers and proxies of a test, as processes on the loopback."""
