"""Processes, load and reads of the crash campaign (tests/crash) and of the bad-days tests."""
