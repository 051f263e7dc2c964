"""The demo: an elastic job on a real cluster, told as it happens and measured from its workers' logs."""
