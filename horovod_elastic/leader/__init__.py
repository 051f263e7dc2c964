"""The leader of a job: who trains with whom, where the GPUs come from, which data goes where."""
