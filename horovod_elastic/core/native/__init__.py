"""The core on copies of Horovod's native library."""
