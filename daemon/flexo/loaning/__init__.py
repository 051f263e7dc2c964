"""Capacity loaning: how many inference servers to lend or call back, which, and how they come back."""
