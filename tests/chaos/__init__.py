"""make test-chaos: processes of every kind are killed and stopped at random, and nothing may be lost."""
