"""Stories that a lab plays before one's eyes: an elastic job, and servers on loan."""
