"""make test-chaos: workers, agents and leaders are killed and stopped at random, and nothing may be lost."""
