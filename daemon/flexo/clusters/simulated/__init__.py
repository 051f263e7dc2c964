"""A cluster in virtual time: GPUs are counted, jobs only pretend to train (`flexo_simulation`)."""
