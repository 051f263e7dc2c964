"""Readers of traces: one file a format; `registry` has them by name."""
