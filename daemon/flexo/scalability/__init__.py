"""The speed of a job on k workers with batch b: measured, fitted, interpolated. Imports `model` alone."""
