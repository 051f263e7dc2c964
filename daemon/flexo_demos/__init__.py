"""Demos on a lab that report each event as it happens: an elastic job, and servers on loan."""
