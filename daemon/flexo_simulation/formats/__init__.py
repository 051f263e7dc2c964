"""Readers of traces: one module per format; `registry` has them by name."""
