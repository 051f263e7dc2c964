"""What sharing a GPU costs the guarantee job, and what it gives the other one, beside two rivals."""
