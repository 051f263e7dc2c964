"""Measures the all-reduces of a cluster, for flexod's forecasts of step times: a program for `flexo run`.

    flexo run python -m horovod_elastic.calibrate all_reduce.json

Two workers of the job exchange the gradients of models of several sizes, then more of them do. Rank 0 writes
the medians to the file, which `[controller] all_reduce` of flexod's configuration names. The job scalability
analyzer of Saxena et al. ("Effective Elastic Scaling of Deep Learning Workloads", section III-B) measures
all-reduces, too. What counts here is how much longer an optimizer's step lasts with others than alone. A bare
all-reduce of as many weights takes less (docs/evidence/speeds.md).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from flexo_protos.all_reduce_file import AllReduceTable

WEIGHTS = (10_000, 100_000, 1_000_000, 10_000_000, 30_000_000, 100_000_000)
"""The numbers of weights that are reduced. The paper has 10 to 100 million; many models are smaller."""
_EACH_UP_TO = 8
"""Up to this number of workers, all numbers are measured; beyond it, every power of two, and the last."""
_WARM_UP = 2
_TENSORS = 16
"""Tensors of a model. Small ones have fewer; ResNet-50 has 161."""
_LEAST_S = 1e-6
"""The least that an exchange is said to take: two measurements waver, and their difference may be below 0."""


def main() -> None:
    """Measure, and write the file."""
    options = _parse(sys.argv[1:])
    import horovod.torch as hvd
    import torch

    hvd.init(process_sets="dynamic")
    if hvd.size() < 2:
        sys.exit("calibrate: this job has 1 worker: an all-reduce takes 2 or more workers")
    device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    sizes = sizes_up_to(hvd.size())
    rows = [_row(hvd, torch, device, size, options.weights, options.repeats) for size in sizes]
    if hvd.rank() == 0:
        backend = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        table = AllReduceTable(backend, sizes, tuple(float(each) for each in options.weights), tuple(rows))
        unfinished = options.file.with_suffix(".new")
        unfinished.write_text(table.to_text())
        unfinished.rename(options.file)
        print(
            f"all-reduces of {len(sizes)} sizes, 2 to {sizes[-1]} workers, are in {options.file}", flush=True
        )


def sizes_up_to(workers: int) -> tuple[int, ...]:
    """The numbers of workers to measure, ascending, of a job of `workers`."""
    doubled = {1 << power for power in range(1, workers.bit_length())}
    return tuple(size for size in range(2, workers + 1) if size <= _EACH_UP_TO or size in doubled | {workers})


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m horovod_elastic.calibrate", description=__doc__.splitlines()[0]
    )
    parser.add_argument("file", type=Path, help="the file to write; rank 0 writes it")
    parser.add_argument(
        "--weights",
        type=_numbers,
        default=WEIGHTS,
        metavar="N,N...",
        help="numbers of weights of 4 bytes that models have, ascending (%(default)s)",
    )
    parser.add_argument("--repeats", type=int, default=15, help="exchanges of each size (%(default)s)")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: a number from 1 is allowed")
    return options


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(","))
    if list(numbers) != sorted(set(numbers)) or numbers[0] < 1:
        raise argparse.ArgumentTypeError("numbers from 1 that ascend, with commas between them, are allowed")
    return numbers


def _row(
    hvd: Any, torch: Any, device: Any, workers: int, weights: Sequence[int], repeats: int
) -> tuple[float, ...]:
    """The seconds of the exchanges of the first `workers` workers, for each number of weights."""
    everybody = workers == hvd.size()
    group = hvd.global_process_set if everybody else hvd.add_process_set(list(range(workers)))
    seconds = tuple(0.0 for _ in weights)
    if hvd.rank() < workers:
        pairs = [_Pair(hvd, torch, device, each, group) for each in weights]
        seconds = _added_s(hvd, group, pairs, repeats)
    hvd.allreduce(torch.zeros(1), name="calibrate.met")  # the others wait here
    if not everybody:
        hvd.remove_process_set(group)
    return seconds


def _added_s(hvd: Any, group: Any, pairs: Sequence[_Pair], repeats: int) -> tuple[float, ...]:
    """Per pair: the median of how many seconds longer a step of all members is than one of rank 0 alone.

    The pairs take turns. A machine has slow spells of seconds, and the steps of one pair in a row would all
    fall into one.
    """
    found: list[list[float]] = [[] for _ in pairs]
    for number in range(_WARM_UP + repeats):
        for pair, seconds in zip(pairs, found, strict=True):
            added_s = pair.added_s(hvd, group)
            if number >= _WARM_UP:
                seconds.append(added_s)
    return tuple(max(_LEAST_S, median(seconds)) for seconds in found)


class _Pair:
    """Two models with the same number of weights: rank 0 trains one alone, and all members the other."""

    def __init__(self, hvd: Any, torch: Any, device: Any, weights: int, group: Any) -> None:
        self._alone, self._together = (_Model(torch, device, weights) for _ in range(2))
        self._together.optimizer = hvd.DistributedOptimizer(
            self._together.optimizer, named_parameters=self._together.named, process_set=group
        )
        self._met = torch.zeros(1)

    def added_s(self, hvd: Any, group: Any) -> float:
        """How many seconds longer a step of all members is than one of rank 0 alone, once."""
        hvd.allreduce(self._met, name="calibrate.alone", process_set=group)
        alone_s = self._alone.step_s() if hvd.rank() == 0 else 0.0
        hvd.allreduce(self._met, name="calibrate.together", process_set=group)
        return self._together.step_s() - alone_s


class _Model:
    """A model that has weights and nothing else, so that a step computes hardly anything."""

    def __init__(self, torch: Any, device: Any, weights: int) -> None:
        lengths = [weights // _TENSORS + (number < weights % _TENSORS) for number in range(_TENSORS)]
        tensors = [torch.nn.Parameter(torch.zeros(each, device=device)) for each in lengths if each]
        self.named = [(f"calibrate.{weights}.{index}", each) for index, each in enumerate(tensors)]
        self.optimizer: Any = torch.optim.SGD(tensors, lr=0.0)
        self._wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def step_s(self) -> float:
        """The seconds of a step."""
        began = time.perf_counter()
        self.optimizer.zero_grad()
        sum(each.sum() for _, each in self.named).backward()
        self.optimizer.step()
        self._wait()
        return time.perf_counter() - began


if __name__ == "__main__":
    main()
