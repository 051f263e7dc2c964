"""The front end for PyTorch's own scripts: torch.distributed and DistributedDataParallel, unchanged."""
