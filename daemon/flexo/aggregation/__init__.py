"""The algorithms of the Parameter Service (AutoPS): which Aggregators sum which tensors of which jobs."""
