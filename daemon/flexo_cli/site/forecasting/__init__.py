"""The code of `flexo forecast`: its sources of history and its output."""
