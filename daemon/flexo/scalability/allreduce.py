"""A model of step time: a pass over samples, and a ring all-reduce that partly hides behind it.

After Pollux, section 3.2 (Qiao et al., OSDI 2021; eq. 8 to 11): with m samples a pass on each of K workers,

    T_iter = (T_grad(m)^gamma + T_sync(K)^gamma)^(1/gamma)

where gamma is 1 when nothing overlaps and large when everything does. T_grad is linear between the observed
sizes and beyond them. T_sync is not from Pollux. A ring of K workers sends 2 (K-1)/K of the gradients over
its slowest link. It passes them on K-1 times each way (Patarasuk and Yuan, 2009), so

    T_sync(K) = ring_s 2 (K-1)/K + latency_s (K-1)

with other constants between nodes than within one node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flexo.scalability.step_times import Observation
from flexo.scalability.uncertainty import ANOTHER_BATCH, NEVER_BETWEEN, NEVER_WITHIN, of_size

Array = npt.NDArray[np.float64]

_OVERLAPS = (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Values of gamma that `fit` tries; Pollux, too, stops at 10."""
_LITTLE_OVERLAP = 1e-3
"""Weight that keeps gamma near 1 where observations do not determine it (Pollux' artifact: the same
weight)."""
_LITTLE_LATENCY = 1.0
"""Weight that keeps latency near 0: unobserved sizes are assumed to scale well (Pollux, section 4.1)."""
_BETWEEN_NODES = 1.1
"""Factor by which an exchange between nodes is assumed slower than one within a node (Pollux' artifact). It
applies until an exchange between nodes has been observed."""


@dataclass(frozen=True, slots=True)
class PassTime:
    """The seconds of one pass over samples on one worker, from observed passes."""

    sizes: tuple[float, ...]
    """Samples of the observed passes, ascending; not empty."""
    seconds: tuple[float, ...]
    per_sample_s: float
    """Seconds of each sample beyond the observed sizes."""

    def at(self, samples: Array) -> Array:
        """The seconds of passes, for an array of any shape; at least half of the smallest observed size's
        seconds."""
        sizes, seconds = np.array(self.sizes), np.array(self.seconds)
        beyond = np.maximum(samples - sizes[-1], 0.0) + np.minimum(samples - sizes[0], 0.0)
        inside = np.interp(samples, sizes, seconds)
        return np.asarray(np.maximum(inside + self.per_sample_s * beyond, seconds[0] / 2))


@dataclass(frozen=True, slots=True)
class RingTime:
    """The seconds of an all-reduce when nothing hides it."""

    ring_s: float
    """Seconds for two workers, without latency."""
    latency_s: float
    """Seconds of latency for each further worker."""

    def at(self, workers: Array) -> Array:
        """The seconds of all-reduces, for an array of any shape; 0 for a single worker."""
        return self.ring_s * 2 * (workers - 1) / workers + self.latency_s * (workers - 1)

    def times(self, factor: float) -> RingTime:
        """An all-reduce `factor` times as slow."""
        return RingTime(self.ring_s * factor, self.latency_s * factor)


@dataclass(frozen=True, slots=True)
class StepModel:
    """The seconds of one step (equations in the module's docstring). Frozen and hashable."""

    compute: PassTime
    within: RingTime
    between: RingTime
    gamma: float
    residual: float
    """Root mean square of the relative errors of the observed exchanges."""
    seen_within: tuple[int, ...] = ()
    """Numbers of workers that were observed on one node, ascending; a single worker is listed here."""
    seen_between: tuple[int, ...] = ()

    def error(self, workers: int, several_nodes: bool) -> float:
        """Relative standard error of the step time (docs/explanation/scalability.md, "What is not known")."""
        seen = [count for count in (self.seen_between if several_nodes else self.seen_within) if count > 1]
        if workers == 1:
            unseen = ANOTHER_BATCH
        elif not seen:
            unseen = NEVER_BETWEEN if several_nodes else NEVER_WITHIN
        else:
            unseen = math.hypot(ANOTHER_BATCH, of_size(workers, seen))
        return math.hypot(self.residual, unseen)

    def pass_s(self, local: Array) -> Array:
        """The seconds of one pass whose gradients are kept."""
        return self.compute.at(local)

    def step_s(self, workers: Array, several_nodes: bool, local: Array) -> Array:
        """The seconds of one pass and the exchange of its gradients. Arrays are broadcast."""
        ring = self.between if several_nodes else self.within
        return _joined(self.compute.at(local), ring.at(workers), self.gamma)


def fit(seen: Iterable[Observation]) -> StepModel:
    """Fit the model to the observations in `seen`: at least one, and each setting once.

    For each gamma that is tried, it solves linear least squares of the relative errors. There are no
    iterations, so equal observations always give the same model, in less than a millisecond.
    """
    table = _Table.of(seen)
    compute = _fit_passes(table)
    best = min((_fit_rings(table, gamma) for gamma in _OVERLAPS), key=lambda fitted: fitted.cost)
    within, between = best.within, best.between
    return StepModel(
        compute=compute,
        within=within or RingTime(0.0, 0.0),
        between=between or (within.times(_BETWEEN_NODES) if within else RingTime(0.0, 0.0)),
        gamma=best.gamma,
        residual=best.residual,
        seen_within=_distinct(table.workers[~table.several]),
        seen_between=_distinct(table.workers[table.several]),
    )


@dataclass(frozen=True, slots=True)
class _Table:
    """Observations in columns of equal length."""

    workers: Array
    several: npt.NDArray[np.bool_]
    local: Array
    compute_s: Array
    step_s: Array

    @classmethod
    def of(cls, seen: Iterable[Observation]) -> _Table:
        rows = sorted(seen, key=lambda observation: observation.setting)
        if not rows:
            raise ValueError("nothing was seen")
        return cls(
            np.array([row.setting.workers for row in rows], dtype=float),
            np.array([row.setting.nodes > 1 for row in rows]),
            np.array([row.setting.local for row in rows], dtype=float),
            np.array([row.time.compute_s for row in rows]),
            np.array([row.time.step_s for row in rows]),
        )


@dataclass(frozen=True, slots=True)
class _Rings:
    gamma: float
    within: RingTime | None
    between: RingTime | None
    residual: float

    @property
    def cost(self) -> float:
        return self.residual + _LITTLE_OVERLAP * (self.gamma - 1) ** 2


def _fit_passes(table: _Table) -> PassTime:
    """Take the mean time of each size, and the slope of the straight line through all.

    A single observed size is assumed to be half constant, half proportional (Pollux' artifact).
    """
    sizes, where = np.unique(table.local, return_inverse=True)
    seconds = np.bincount(where, table.compute_s) / np.bincount(where)
    if len(sizes) == 1:
        slope = float(seconds[0] / 2 / sizes[0])
    else:
        slope = max(0.0, float(np.polyfit(sizes, seconds, 1)[0]))
    return PassTime(tuple(sizes.tolist()), tuple(seconds.tolist()), slope)


def _fit_rings(table: _Table, gamma: float) -> _Rings:
    predicted = table.compute_s.copy()
    rings = []
    for several in (False, True):
        chosen = (table.several == several) & (table.workers > 1)
        ring = _fit_ring(table, chosen, gamma) if chosen.any() else None
        if ring is not None:
            predicted[chosen] = _joined(table.compute_s[chosen], ring.at(table.workers[chosen]), gamma)
        rings.append(ring)
    exchanged = table.workers > 1
    errors = np.log(predicted[exchanged] / table.step_s[exchanged])
    residual = float(np.sqrt(np.mean(errors**2))) if len(errors) else 0.0
    return _Rings(gamma, rings[0], rings[1], residual)


def _fit_ring(table: _Table, chosen: npt.NDArray[np.bool_], gamma: float) -> RingTime:
    """Fit a ring's constants by least squares relative to the step time. None is below 0; latency is kept
    small."""
    workers, step_s = table.workers[chosen], table.step_s[chosen]
    sync_s = np.maximum(step_s**gamma - table.compute_s[chosen] ** gamma, 0.0) ** (1 / gamma)
    ring = 2 * (workers - 1) / workers / step_s
    hops = (workers - 1) / step_s
    wanted = sync_s / step_s
    rr, rh, hh = ring @ ring, ring @ hops, hops @ hops + _LITTLE_LATENCY
    rw, hw = ring @ wanted, hops @ wanted
    latency_s = (rr * hw - rh * rw) / (rr * hh - rh * rh)
    if latency_s <= 0:
        return RingTime(max(0.0, float(rw / rr)), 0.0)
    return RingTime(max(0.0, float((rw - rh * latency_s) / rr)), float(latency_s))


def _joined(compute_s: Array, sync_s: Array, gamma: float) -> Array:
    return np.asarray((compute_s**gamma + sync_s**gamma) ** (1 / gamma))


def _distinct(workers: Array) -> tuple[int, ...]:
    return tuple(int(count) for count in np.unique(workers))
