"""Published figures of scheduling papers, and what this simulator finds (make bench-papers)."""
