"""Dedicated parameter servers as AutoPS describes them, as a rival in the benchmark only: resident mode."""
