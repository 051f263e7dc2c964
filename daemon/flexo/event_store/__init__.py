"""flexod's observations, decisions and actions, in one SQLite file."""
