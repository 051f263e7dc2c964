"""What elastic jobs on YARN cost: growth, the job's own process, and polls of a large cluster."""
