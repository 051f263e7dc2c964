"""What both programs of the benchmark's elastic jobs share: options, sizes of the model, and the log."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

INPUTS, CLASSES = 16, 4


def parse_arguments() -> argparse.Namespace:
    """Parse the options. The benchmark gives all of them."""
    parser = argparse.ArgumentParser(description="Train, sleeping in each step.")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True, help="mini-batches of one worker in an epoch")
    parser.add_argument("--step-seconds", type=float, required=True, help="of one worker alone")
    parser.add_argument("--slower", type=float, default=0.0, help="share by which each more worker slows it")
    parser.add_argument("--log-dir", type=Path, required=True)
    return parser.parse_args()


class Log:
    """A file of this process with one JSON line for each event."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)

    def write(self, event: str, rank: int, size: int) -> None:
        """Add a line. The file is line-buffered, so that the line survives if the worker is killed."""
        fields = {"event": event, "time": time.time(), "rank": rank, "size": size}
        self._file.write(json.dumps(fields) + "\n")
