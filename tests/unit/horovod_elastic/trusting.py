"""The stand-in for MUNGE, under the name by which tests import it."""

from flexo_bench.local_job.trusting import Trusting

__all__ = ["Trusting"]
