"""The programs in docs/site/ and packages/ are no packages: they are found as they find each other."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "docs" / "site"), str(ROOT / "packages")]
