"""Inside a training process: what makes an unmodified Horovod script resizable."""
