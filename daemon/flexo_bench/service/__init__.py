"""The benchmark of the Parameter Service: one module for each part, all of them in `parts`."""
