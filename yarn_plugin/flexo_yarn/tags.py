"""What flexo writes into an application at its submission, and reads again: its type and its tags.

The ResourceManager writes all tags in small letters.
"""

from __future__ import annotations

from typing import Final

APPLICATION_TYPE: Final = "FLEXO"
BASE: Final = "flexo:base="
"""Of a flex application: the base application."""
KEY: Final = "flexo-key:"
"""The fingerprint of the job's secret."""
ELASTIC: Final = "flexo:elastic="
"""The range of workers, MIN-MAX."""
BATCH: Final = "flexo:batch="
"""The range of the aggregate batch, MIN-MAX."""
FUNGIBLE, HETEROGENEOUS = "flexo:fungible", "flexo:heterogeneous"
WORKER: Final = "flexo:worker="
"""What one worker takes: GPUs, CPUs and MiB of memory, separated by commas."""
