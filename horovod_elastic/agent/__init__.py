"""One process a node of a job: starts and watches its workers, and leads the job when it holds the lease."""
