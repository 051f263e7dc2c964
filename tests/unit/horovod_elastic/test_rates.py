"""Learning rates that follow the number of workers, and PyTorch's schedulers that go on from there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.optim import lr_scheduler  # noqa: E402

from horovod_elastic.worker.ddp.rates import RateRule, ScaledRates, rule_in, scale  # noqa: E402

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "none": lambda _: None,
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 20, eta_min=0.01),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 6, eta_min=0.01),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=15),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=40),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.5, step_size_up=4, cycle_momentum=False),
}


def train(make: Callable[[Any], Any], resizes: dict[int, float]) -> list[float]:
    """The rate of each of 30 steps; `resizes`: by step, the factor."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler = make(optimizer)
    rates = []
    for step in range(30):
        if step in resizes:
            scale([optimizer], [scheduler] if scheduler else [], resizes[step])
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if scheduler:
            scheduler.step()
    return rates


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_goes_on_as_if_its_rates_had_always_been_scaled(name: str) -> None:
    undisturbed = train(SCHEDULERS[name], {})
    resized = train(SCHEDULERS[name], {7: 2.0, 13: 0.25})
    assert resized[:7] == undisturbed[:7]
    assert resized[7:13] == pytest.approx([2 * each for each in undisturbed[7:13]])
    assert resized[13:] == pytest.approx([each / 2 for each in undisturbed[13:]])


def test_a_plateau_scheduler_keeps_its_floor_in_proportion() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, min_lr=0.1)
    scale([optimizer], [scheduler], 2.0)
    for _ in range(5):
        scheduler.step(1.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)


def test_a_rate_in_a_tensor_stays_the_same_tensor() -> None:
    """A compiled or captured step refers to it."""
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=rate, capturable=True)
    scale([optimizer], [], 3.0)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("rule", "factor"), [(RateRule.LINEAR, 1.5), (RateRule.SQRT, math.sqrt(1.5)), (None, 1.0)]
)
def test_rates_follow_the_workers_only_where_the_user_has_asked(rule: RateRule | None, factor: float) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    rates = ScaledRates(rule, 2)
    rates.follow(3, [optimizer], [])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * factor)
    rates.follow(3, [optimizer], [])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * factor)
    rates.follow(2, [optimizer], [])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def test_a_newcomer_scales_from_the_size_of_the_rates_that_it_received() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    giver, newcomer = ScaledRates(RateRule.LINEAR, 4), ScaledRates(RateRule.LINEAR, 2)
    newcomer.take_over(giver.own())
    newcomer.follow(6, [optimizer], [])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.15)


def test_the_variable_names_a_rule_or_none() -> None:
    assert rule_in("") is None
    assert rule_in("sqrt") is RateRule.SQRT
    with pytest.raises(ValueError, match="cubic"):
        rule_in("cubic")
