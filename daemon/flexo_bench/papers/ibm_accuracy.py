"""IBM's figure 2 on a small real model: accuracy with a fixed batch, and with batches that change (II-C).

Everything here trains: a network of convolutions on the handwritten digits that scikit-learn ships, half of
them kept for the test. A batch that changes takes its learning rate along by the rule that jobs have by
default (`horovod_elastic.batches.linear`).
"""

from __future__ import annotations

import math
import multiprocessing
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Final

from scipy.stats import t as students_t

from flexo_bench.papers.figures import Comparison, Figure, Row, Table
from flexo_bench.papers.ibm import PAPER
from horovod_elastic.batches import linear

FIXED: Final = 64
"""The batch of the fixed training. The range is from a quarter of it to twice it, as in the paper."""
BATCHES: Final = (16, 32, 64, 128)
OUTSIDE: Final = 512
"""A batch far above the range, to see that the measurement tells a difference."""
EPOCHS: Final = 40
WIDTH: Final = 16
"""Channels of the first convolution."""
LEARNING_RATE: Final = 0.02
"""The learning rate for FIXED. It is divided by 10 after a half and after three quarters of the epochs.

It was chosen so that the whole range trains: with 0.05, a network twice as wide stayed at 92% with a fixed
128 and seed 1."""
MOMENTUM: Final = 0.9
CHANGES: Final = 3
"""The changes of a training whose batch rises, falls, or does either."""
WORKERS: Final = 8
"""The most workers of the elastic training, with 16 samples each."""
TOLERANCE: Final = 0.5
"""Percentage points by which the paper's trainings differ at most."""
EVERY: Final = 10
"""Epochs between two measurements of the accuracy."""
DIFFERENCES: Final = (
    "Theirs: VGG11 on CIFAR100, 160 epochs, batches 128 to 1024, fixed 512. Ours: 15 thousand weights on 898"
    f" digits of 8 x 8 pixels, {EPOCHS} epochs, batches {BATCHES[0]} to {BATCHES[-1]}, fixed {FIXED}."
    " 899 other digits are the test.",
    "Their changes are at epochs of unknown draw. Ours: three changes at epochs drawn by seed. In the elastic"
    " row, workers change every half to two epochs, also in the midst of one, with 16 samples a worker.",
    "Learning rate: theirs is not printed. Ours goes along with the batch in proportion, flexo's default.",
    f"Each seed has its own weights, halves and order. The paper says +-{TOLERANCE} points, of one run each.",
    f"A row of {OUTSIDE} is outside of the range: it shows whether this measurement can tell a difference.",
)

Plan = tuple[tuple[float, int], ...]
"""Where batches begin: the position in epochs, and the batch; the first one at 0."""


@dataclass(frozen=True)
class Outcome:
    """What a training came to."""

    accuracy: tuple[float, ...]
    """The part of the test digits that is classified correctly, after every EVERY epochs."""


def constant(batch: int, _drawn: random.Random) -> Plan:
    """The same batch throughout."""
    return ((0.0, batch),)


def rising(drawn: random.Random) -> Plan:
    """From the smallest to the largest batch, by doublings at random epochs."""
    return _changing(BATCHES, drawn)


def falling(drawn: random.Random) -> Plan:
    """From the largest to the smallest batch, by halvings at random epochs."""
    return _changing(BATCHES[::-1], drawn)


def up_and_down(drawn: random.Random) -> Plan:
    """From the fixed batch to other ones at random epochs, never twice the same in a row."""
    batches = [FIXED]
    for _ in range(CHANGES):
        batches.append(drawn.choice([batch for batch in BATCHES if batch != batches[-1]]))
    return _changing(batches, drawn)


def elastic(drawn: random.Random) -> Plan:
    """The batch of a job whose workers come and go, at any step: 16 samples for each of 1 to WORKERS."""
    at, plan = 0.0, []
    while at < EPOCHS:
        plan.append((at, BATCHES[0] * drawn.randint(1, WORKERS)))
        at += drawn.uniform(0.5, 2.0)
    return tuple(plan)


def _changing(batches: Sequence[int], drawn: random.Random) -> Plan:
    starts = [0, *sorted(drawn.sample(range(1, EPOCHS), len(batches) - 1))]
    return tuple((float(at), batch) for at, batch in zip(starts, batches, strict=True))


PLANS: Final[Mapping[str, Callable[[random.Random], Plan]]] = {
    f"fixed {FIXED}": partial(constant, FIXED),
    "rises": rising,
    "falls": falling,
    "rises and falls": up_and_down,
    "elastic, 1 to 8 workers": elastic,
    f"fixed {BATCHES[0]}": partial(constant, BATCHES[0]),
    f"fixed {BATCHES[-1]}": partial(constant, BATCHES[-1]),
    f"fixed {OUTSIDE}, outside": partial(constant, OUTSIDE),
}
"""All trainings; the first one is the rival of the others."""


def batch_at(plan: Plan, position: float) -> int:
    """The batch at this position, in epochs from the beginning."""
    return [batch for start, batch in plan if start <= position][-1]


def learning_rate(epoch: int, batch: int) -> float:
    """The learning rate of a step: a tenth after a half, and again after three quarters of the epochs."""
    tenths = (2 * epoch >= EPOCHS) + (4 * epoch >= 3 * EPOCHS)
    return linear(LEARNING_RATE * 0.1**tenths, FIXED, batch)


def train(label: str, seed: int) -> Outcome:
    """Train once. Equal arguments give equal results on one machine."""
    import torch
    from torch.nn import functional

    from flexo_bench.jsa.models import convolutions, load

    torch.set_num_threads(1)
    images, labels = load()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    taught, asked = order[: len(order) // 2], order[len(order) // 2 :]
    plan = PLANS[label](random.Random(f"{seed} {label}"))
    torch.manual_seed(seed)
    model = convolutions(WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    shuffled = torch.Generator().manual_seed(seed)
    accuracy = []
    for epoch in range(EPOCHS):
        mixed, done = taught[torch.randperm(len(taught), generator=shuffled)], 0
        while done < len(mixed):
            batch = batch_at(plan, epoch + done / len(mixed))
            chosen, done = mixed[done : done + batch], done + batch
            optimizer.param_groups[0]["lr"] = learning_rate(epoch, batch)
            optimizer.zero_grad()
            functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
        if (epoch + 1) % EVERY == 0:
            with torch.no_grad():
                right = model(images[asked]).argmax(1) == labels[asked]
            accuracy.append(right.float().mean().item())
    return Outcome(tuple(accuracy))


def compare(processes: int, seeds: Sequence[int], say: Callable[[str], None]) -> Comparison:
    """Train with every plan and seed. `say`: is told of each training that has ended."""
    asked = [(label, seed) for label in PLANS for seed in seeds]
    context = multiprocessing.get_context("spawn")
    found: dict[str, list[Outcome]] = {label: [] for label in PLANS}
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for (label, seed), outcome in zip(asked, pool.map(train, *zip(*asked, strict=True)), strict=True):
            found[label].append(outcome)
            say(f"{label}, seed {seed}: {outcome.accuracy[-1]:.2%}")
    return Comparison("ibm-accuracy", PAPER, DIFFERENCES, tables(found))


def tables(found: Mapping[str, Sequence[Outcome]]) -> tuple[Table, Table]:
    """The accuracy at the end and on the way, of the outcomes of each plan by seed; the first plan is the
    rival."""
    return _ends(found), _course(found)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95% confidence interval of the mean by Student's t; nan for fewer than two values."""
    if len(values) < 2:
        return math.nan, math.nan
    half = float(students_t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def _ends(found: Mapping[str, Sequence[Outcome]]) -> Table:
    """The accuracy at the end, and its difference from that of the fixed batch with the same seed."""
    ends = {label: [100 * each.accuracy[-1] for each in outcomes] for label, outcomes in found.items()}
    rival = next(iter(ends.values()))
    rows = []
    for label, accuracy in ends.items():
        more = [ours - fixed for ours, fixed in zip(accuracy, rival, strict=True)]
        low, high = interval(more)
        figures = [Figure(math.nan, tuple(values)) for values in (accuracy, more, [low], [high])]
        rows.append(Row(label, tuple(figures)))
    columns = (
        "accuracy %",
        f"points more than fixed {FIXED}",
        "95% interval of the mean: from",
        "to",
    )
    return Table("figure 2: accuracy at the end, by batch", columns, tuple(rows))


def _course(found: Mapping[str, Sequence[Outcome]]) -> Table:
    """The accuracy on the way."""
    rows = [
        Row(
            label,
            tuple(
                Figure(math.nan, tuple(100 * each for each in accuracy))
                for accuracy in zip(*(outcome.accuracy for outcome in outcomes), strict=True)
            ),
        )
        for label, outcomes in found.items()
    ]
    columns = tuple(f"epoch {epoch}" for epoch in range(EVERY, EPOCHS + 1, EVERY))
    return Table("figure 2: accuracy % by epoch", columns, tuple(rows))
