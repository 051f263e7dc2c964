"""GPU sharing (AntMan): workers of opportunistic jobs on GPUs that other jobs hold."""
