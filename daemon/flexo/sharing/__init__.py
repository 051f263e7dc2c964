"""GPU sharing: which GPUs two jobs may use, and which opportunistic jobs use them (AntMan)."""
