"""make bench-torch: compares ways to resize scripts of torch.distributed: flexo, torchft and torchrun."""
