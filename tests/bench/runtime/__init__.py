"""make bench-runtime: stock elastic Horovod, stop-checkpoint-restart and flexo, side by side in one run."""
