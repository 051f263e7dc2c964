"""flexo: elastic deep learning on Slurm. docs/architecture.md draws the house."""

__version__ = "0.1.0"
