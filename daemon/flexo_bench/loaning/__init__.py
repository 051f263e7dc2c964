"""Benchmark of loaning: Lyra's setting in the simulator, and choosers of servers to reclaim side by side."""
