"""flexo on other releases of Slurm (make test-slurm-matrix): folder systems, sessions in them, the report."""
