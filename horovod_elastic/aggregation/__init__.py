"""Sums of a job's gradients by Aggregators, processes beside the workers, instead of by an all-reduce."""
