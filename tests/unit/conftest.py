"""Puts this folder on the path, so that tests in folders below can import helpers (`traces.py`)."""

import sys
from pathlib import Path

import horovod_elastic  # noqa: F401 - before this folder, which has one of that name, is on the path

sys.path.insert(0, str(Path(__file__).resolve().parent))
