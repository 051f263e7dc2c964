"""The leader of a job: it decides on the job's workers, its satellites, and the data of each worker."""
