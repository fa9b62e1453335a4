"""The TLS of the daemon's doors: certificates that are taken again when their files change."""
