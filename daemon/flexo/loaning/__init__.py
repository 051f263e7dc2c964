"""Capacity loaning: how many inference servers to lend or reclaim, which ones, and how these are emptied."""
