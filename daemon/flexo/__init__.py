"""flexo: elastic deep learning on a shared cluster. docs/architecture.md draws the house."""

__version__ = "0.1.0"
