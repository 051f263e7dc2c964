"""The commands of `flexo` for sites. They are in the wheel flexo-site; all other commands are in flexo."""
