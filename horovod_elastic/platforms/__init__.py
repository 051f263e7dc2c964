"""The cluster as a job sees it: one interface (base.py), and one folder for each kind of cluster."""
