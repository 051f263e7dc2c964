"""The words of flexo (docs/architecture.md) as frozen types. Nothing else in the tree invents its own.

Units are in the names; times are seconds since the epoch. These files import nothing else of flexo.
"""
