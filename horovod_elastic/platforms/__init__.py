"""A job's access to its cluster: one interface (base.py), and one folder for each kind of cluster."""
