"""Shared fakes and the cluster mini-language of the tests."""
