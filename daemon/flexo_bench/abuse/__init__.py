"""The effect of an abuse of flexod on an honest leader and an elastic job (make bench-abuse)."""
