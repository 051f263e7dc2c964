"""Decides which of several flexods may act: one at a time, by a leader lease."""
