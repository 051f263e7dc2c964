"""Pure: the four models that the paper trains, as small jobs: tensors, compute and aggregation times.

The tensors are those of AlexNet, VGG19, AWD-LM on WikiText-2, and BERT base, each SCALE times smaller. So are
partitions. Two cores cannot aggregate the whole ones in time. A job therefore tells its servers how long
their core takes for a byte. A dedicated server is then used as much as philly_jobs assumes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from flexo.aggregation.demand import LARGEST_TASK
from flexo.aggregation.pool import SECOND
from flexo_bench.service.philly_jobs import MODELS, Model
from flexo_bench.service.resident.job import Plan
from flexo_bench.service.resident.partitions import BYTES

SCALE: Final = 64
WORKERS: Final = 2
SERVERS: Final = 2
"""Of each job: 2s-2w in the paper."""
MODEL: Final = {model.name: model for model in MODELS}


def plan_of(model: Model, number: int, *, whole_tensors: bool = False, contention: float = 1.0) -> Plan:
    """Job `number` with this model. Its core times are such that balanced servers are used as assumed.

    `contention`: see resident.frames.Introduction.
    """
    counts = tensors(model.name)
    per_server = BYTES * sum(counts) / SERVERS
    busy_ns = float(model.use) * model.duration_s * SECOND
    largest = BYTES * max(counts) if whole_tensors else LARGEST_TASK // SCALE
    return Plan([(count,) for count in counts], number, largest, busy_ns / per_server, contention)


def compute_s(model: Model) -> float:
    """What an iteration takes beside the aggregation by balanced servers, if transport takes no time."""
    return float(1 - model.use) * model.duration_s


def tensors(name: str) -> list[int]:
    """The parameters of each tensor of a model, SCALE times fewer, but at least one."""
    return [max(1, count // SCALE) for count in _TENSORS[name]()]


def _layer(inputs: int, outputs: int, kernel: int = 1) -> tuple[int, int]:
    """Weights and biases."""
    return inputs * outputs * kernel**2, outputs


def _alexnet() -> Iterator[int]:
    for inputs, outputs, kernel in ((3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3)):
        yield from _layer(inputs, outputs, kernel)
    for inputs, outputs in ((256 * 6 * 6, 4096), (4096, 4096), (4096, 1000)):
        yield from _layer(inputs, outputs)


def _vgg19() -> Iterator[int]:
    channels = (3, 64, 64, 128, 128, *[256] * 4, *[512] * 8)
    for inputs, outputs in pairwise(channels):
        yield from _layer(inputs, outputs, 3)
    for inputs, outputs in ((512 * 7 * 7, 4096), (4096, 4096), (4096, 1000)):
        yield from _layer(inputs, outputs)


def _awd_lm() -> Iterator[int]:
    words, embedding, hidden, gates = 33_278, 400, 1150, 4
    yield words * embedding
    for inputs, outputs in ((embedding, hidden), (hidden, hidden), (hidden, embedding)):
        yield from (gates * outputs * inputs, gates * outputs * outputs, gates * outputs, gates * outputs)
    yield words  # the decoder's biases; its weights are the embedding


def _bert() -> Iterator[int]:
    words, positions, kinds, wide, layers = 30_522, 512, 2, 768, 12
    norm = wide, wide
    yield from (words * wide, positions * wide, kinds * wide, *norm)
    for _ in range(layers):
        for _ in range(4):  # queries, keys, values, and their output
            yield from _layer(wide, wide)
        yield from (*norm, *_layer(wide, 4 * wide), *_layer(4 * wide, wide), *norm)
    yield from _layer(wide, wide)


_TENSORS: Final = {"AlexNet": _alexnet, "VGG19": _vgg19, "AWD-LM": _awd_lm, "BERT": _bert}
