"""Communication libraries for resizable training: one interface (interface.py), two implementations."""
