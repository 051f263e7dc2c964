"""Benchmarks of the job runtime (make bench-runtime). They share the ranks of tests/training."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))
