"""Cores without I/O: state machines that take events and return effects, in synchronous code."""
