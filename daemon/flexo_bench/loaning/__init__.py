"""Benchmark of loaning: Lyra's setting in the simulator, and choices of servers to vacate side by side."""
