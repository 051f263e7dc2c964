"""What reading ahead saves (Amoeba, section 5.3): loops over a slow reader with and without it, in turns.

    python -m flexo_bench.read_ahead [--rounds 12] [--read-ms 5,20,40] [--step-ms 20] [--device cuda]

A mini-batch is read in `read` milliseconds, in which the reader only waits, as for a network file system. A
step of training sleeps, as if a GPU were computing. So reading ahead can save the shorter of both times. The
rival is PyTorch's DataLoader that reads in the loop. A DataLoader with a process that reads ahead is measured
beside it, and so is flexo's ElasticDataset, whose thread reads ahead. All loops take a turn in each round.

With `--device cuda`, each step ends when the mini-batch is on the GPU and has been used there. Loops of
ElasticDataset are then measured twice: with a copy in the loop, and with copies ahead (`device="cuda"`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from flexo_bench.elastic_ddp.results import Sample
from horovod_elastic.data import ElasticDataset

PLAIN, TORCH, FLEXO = "DataLoader, reads in the loop", "DataLoader, one process", "ElasticDataset, a thread"
AHEAD = "ElasticDataset, copies ahead"
BATCH, SAMPLE_FLOATS = 8, 1 << 15
STEPS, WARM = 30, 3
"""Steps of each turn that count, and steps before them."""


class Slow(Dataset):  # type: ignore[misc]  # PyTorch is not checked
    """Samples of 128 KiB. A whole mini-batch of them takes `read_s` seconds."""

    def __init__(self, read_s: float) -> None:
        self._read_s = read_s
        self._sample = torch.zeros(SAMPLE_FLOATS)

    def __len__(self) -> int:
        return BATCH * (WARM + STEPS + 4)

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        """The samples of a mini-batch."""
        time.sleep(self._read_s)
        return [self._sample] * len(indices)


@dataclass(frozen=True, slots=True)
class Turn:
    """Mean seconds of a step in one turn of one loop."""

    read_s: float
    way: str
    round: int
    step_s: float


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured, and how often."""

    reads_s: tuple[float, ...]
    step_s: float
    rounds: int
    device: str = "cpu"


def loop_of(way: str, read_s: float, device: str) -> Iterable[torch.Tensor]:
    """The mini-batches of one loop, one epoch of them."""
    data = Slow(read_s)
    if way in (PLAIN, TORCH):
        processes, pin = int(way == TORCH), device != "cpu"
        rival: Iterable[torch.Tensor] = DataLoader(
            data, BATCH, shuffle=True, num_workers=processes, pin_memory=pin
        )
        return rival
    return ElasticDataset(data, BATCH, device=device if way == AHEAD else None, name="read ahead")


def measure(settings: Settings) -> Iterator[Turn]:
    """All turns. The order of the loops alternates from round to round."""
    ways = [PLAIN, TORCH, FLEXO, *([AHEAD] if settings.device != "cpu" else [])]
    for number, read_s in itertools.product(range(settings.rounds), settings.reads_s):
        for way in ways if number % 2 == 0 else reversed(ways):
            step_s = _turn(loop_of(way, read_s, settings.device), settings)
            yield Turn(read_s, way, number, step_s)


def _turn(loop: Iterable[torch.Tensor], settings: Settings) -> float:
    """Mean seconds of the steps after the first ones."""
    batches, began = iter(loop), 0.0
    for number in range(WARM + STEPS):
        if number == WARM:
            began = time.perf_counter()
        batch = next(batches)
        if settings.device != "cpu":
            batch.to(settings.device, non_blocking=True).sum().item()
        time.sleep(settings.step_s)
    return (time.perf_counter() - began) / STEPS


def ratios(turns: Sequence[Turn], read_s: float, way: str) -> Sample:
    """Times of a step over those of the loop without reading ahead, of the same rounds."""
    plain = {turn.round: turn.step_s for turn in turns if (turn.read_s, turn.way) == (read_s, PLAIN)}
    own = [turn for turn in turns if (turn.read_s, turn.way) == (read_s, way)]
    return Sample(tuple(turn.step_s / plain[turn.round] for turn in own))


def lines(turns: Sequence[Turn], step_s: float) -> Iterator[str]:
    """The results for people: medians with intervals of 95% confidence."""
    yield f"{'read, ms':10}{'':32}{'ms a step':>12}{'over the rival':>16}{'95% interval':>18}{'at best':>10}"
    for read_s, way in dict.fromkeys((turn.read_s, turn.way) for turn in turns):
        found = ratios(turns, read_s, way)
        took = Sample(tuple(t.step_s for t in turns if (t.read_s, t.way) == (read_s, way)))
        best = 1.0 if way == PLAIN else max(read_s, step_s) / (read_s + step_s)
        ends = "-" if found.interval is None else "{:.3f} to {:.3f}".format(*found.interval)
        took_ms = 1e3 * (took.median or 0.0)
        yield f"{1e3 * read_s:<10g}{way:32}{took_ms:>12.1f}{found.median:>16.3f}{ends:>18}{best:>10.3f}"


def main() -> None:
    """Measure, print the table, and write all turns."""
    parser = argparse.ArgumentParser(
        prog="make bench-data", description="what reading mini-batches ahead saves",
        epilog="Options go into ARGS: make bench-data ARGS='--rounds 6'",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--read-ms", default="5,20,40", help="times to read a mini-batch (%(default)s)")
    parser.add_argument("--step-ms", type=float, default=20.0, help="time of a step (%(default)s)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", type=Path, default=Path("build/bench/data.json"), help="where turns go")
    options = parser.parse_args()
    reads_s = tuple(float(text) / 1e3 for text in options.read_ms.split(","))
    settings = Settings(reads_s, options.step_ms / 1e3, options.rounds, options.device)
    torch.set_num_threads(1)
    turns = list(measure(settings))
    print("\n".join(lines(turns, settings.step_s)))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps([asdict(turn) for turn in turns], indent=1) + "\n")
    print(f"\nwritten: {options.json}")


if __name__ == "__main__":
    main()
