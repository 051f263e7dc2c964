"""make bench-runtime: stock elastic Horovod, stop-checkpoint-restart, flexo on both cores: in one run."""
