"""The simulator: it runs traces in virtual time under flexod's controller and policies, and reports the
results."""
