"""How fast a job trains on k workers with batch b: measured, fitted, interpolated. Knows `model` alone."""
