"""flexo-web: pages on what flexod sees and does, served by an unprivileged process beside it."""
