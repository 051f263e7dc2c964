"""Communication libraries for resizable training: the seam (interface.py), and the two behind it."""
