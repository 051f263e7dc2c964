"""The demo of an elastic job on a real cluster: reported as it happens, measured from its workers' logs."""
