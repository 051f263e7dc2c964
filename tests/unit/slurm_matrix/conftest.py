"""The matrix is a program under tests/slurm, not part of what is installed."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "slurm"))
