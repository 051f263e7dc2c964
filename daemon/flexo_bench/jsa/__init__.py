"""make bench-jsa: step times as the job scalability analyzer expects them, beside measured ones."""
