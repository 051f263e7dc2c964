"""The vocabulary of flexo (docs/explanation/architecture.md) as frozen types. Other packages use these types.

Units are in the names of fields. Times are seconds since the epoch. The modules import nothing else of
`flexo`.
"""
