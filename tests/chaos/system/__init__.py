"""Chaos on a whole cluster: daemons, connections and jobs' processes fail while jobs and loans go on."""
