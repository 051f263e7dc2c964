"""The core on process groups of torch.distributed, under Horovod's own Python layer."""
