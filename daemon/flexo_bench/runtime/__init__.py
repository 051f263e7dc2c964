"""make bench-runtime: compares stock elastic Horovod, stop-checkpoint-restart and flexo on both cores."""
