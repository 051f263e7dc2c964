"""Puts this folder on the path, so that tests in folders below can import helpers (`traces.py`)."""
