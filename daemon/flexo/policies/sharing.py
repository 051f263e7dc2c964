"""Lyra's phase 2: shares GPUs of one type among elastic jobs, as a multiple-choice knapsack (slides).

"Knapsack size: available GPUs; group: job; item: possible allocation of the job; weight: extra GPUs required;
value: running time reduction." Beyond the slides, a change is charged with the training time that it costs.
Growing has to pay while the GPUs stay (Amoeba, section 3.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flexo.model.training import NodeShare
from flexo.policies.flexible import Demand, Floats, RunningTimes, count, cut
from flexo.policies.knapsack import Group, choose
from flexo.policies.resize_benefit import pays
from flexo.policies.servers import Servers
from flexo_protos.resources import Resources

_LEAST_COST_S = 1e-3
"""The least cost of a change: of equally good sizes, a job keeps its present one."""
_TRIES = 4
"""The most attempts at sharing: a new one follows if a part found no room of its shape."""


@dataclass(slots=True)
class _Holding:
    """One job's part in the GPUs that are shared."""

    demand: Demand
    here: list[NodeShare]
    """The job's flexible workers on the type that is shared."""
    others: list[NodeShare]
    """The job's other flexible workers, on types that are at least as fast."""
    slower: list[NodeShare]
    """The job's flexible workers on slower types, the slowest last. Workers on this type replace them where
    the job may have no more workers."""
    elsewhere: int
    """Workers of the job that are not on this type and stay, the base included."""
    types_elsewhere: Counter[str]
    """The workers elsewhere, by GPU type."""
    held: int
    """Workers that the job has on this type."""
    most: int
    """The most workers that the job may have on this type."""

    def replaced(self, here: int) -> int:
        """Workers on slower types that `here` workers on this type replace."""
        return max(0, self.elsewhere + count(self.slower) + here - self.demand.job.workers.max)

    def kept(self, here: int) -> list[NodeShare]:
        """The workers on slower types that stay beside `here` workers on this type."""
        kept = self.slower.copy()
        cut(kept, self.replaced(here), lambda share: True)
        return kept


class Sharing:
    """The GPUs of one type under phase 2. It writes its decision into the demands and the servers."""

    def __init__(self, servers: Servers, gpu_type: str, times: RunningTimes, stay_s: float) -> None:
        self._servers = servers
        self._gpu_type = gpu_type
        self._times = times
        self._stay_s = stay_s
        self._speed = times.gpus.of_one("", gpu_type)

    def share_out(self, demands: Sequence[Demand]) -> None:
        """Share the GPUs among `demands`: jobs that may all have flexible workers on this type."""
        holdings = [self._holding(demand) for demand in demands]
        if all(holding.held >= holding.most for holding in holdings):
            return
        for holding in holdings:
            self._servers.give(holding.demand.job.shape, holding.here)
        for holding in holdings:
            holding.most = max(holding.held, min(holding.most, self._room(holding.demand.job.shape)))
        for attempt in range(_TRIES):
            sizes = self._sizes(holdings)
            if self._place(holdings, sizes, partly=attempt == _TRIES - 1):
                return

    def _holding(self, demand: Demand) -> _Holding:
        here: list[NodeShare] = []
        others: list[NodeShare] = []
        slower: list[NodeShare] = []
        for share in demand.flexible:
            if self._servers.gpu_type_of(share) == self._gpu_type:
                here.append(share)
            else:
                (slower if self._speed_of(share) < self._speed else others).append(share)
        slower.sort(key=self._speed_of, reverse=True)
        types = self._types((*demand.base, *others))
        elsewhere = types.total()
        held = count(here)
        most = max(held, demand.job.workers.max - elsewhere)
        return _Holding(demand, here, others, slower, elsewhere, types, held, most)

    def _speed_of(self, share: NodeShare) -> float:
        """The speed of the share's GPUs, relative to the cluster's fastest."""
        return self._times.gpus.of_one("", self._servers.gpu_type_of(share) or "")

    def _types(self, shares: Iterable[NodeShare]) -> Counter[str]:
        """Workers by GPU type."""
        types: Counter[str] = Counter()
        for share in shares:
            types[self._servers.gpu_type_of(share) or ""] += share.workers
        return types

    def _room(self, shape: Resources) -> int:
        """The most workers that find GPUs on this type. A job may allow any number, because users may write
        any number."""
        free = self._servers.free(self._gpu_type)
        return free // shape.gpus if shape.gpus else self._servers.room(shape, self._gpu_type)

    def _sizes(self, holdings: Sequence[_Holding]) -> list[int]:
        """Per holding: the workers that it is to have on this type; as many as now if nothing is better."""
        groups = [self._group(holding) for holding in holdings]
        choice = choose(groups, self._servers.free(self._gpu_type))
        now = sum(
            float(group.values[holding.held - 1])
            for group, holding in zip(groups, holdings, strict=True)
            if holding.held
        )
        if now >= choice.value:
            return [holding.held for holding in holdings]
        return [item + 1 for item in choice.items]

    def _group(self, holding: _Holding) -> Group:
        """The worth of 1, 2, ... workers on this type for a job: weighted seconds saved, compared with no
        worker."""
        job, held = holding.demand.job, holding.held
        here = np.arange(holding.most + 1)
        rates = self._rates(holding)
        seconds = self._times.seconds(job, rates)
        values = (seconds[0] - seconds[1:]) * job.weight
        if not holding.demand.changes_anyhow:
            cost = max(_LEAST_COST_S, job.change_cost_s)
            # the present size is worth more than any other by the cost of a change
            if held:
                values[held - 1] += cost * job.weight
            else:
                values -= cost * job.weight
            values[held:][~self._pays(rates, seconds, held, cost)] = -np.inf
        gpus = job.shape.gpus
        weights = here[1:] * gpus if isinstance(gpus, int) else [int(many) * gpus for many in here[1:]]
        return Group(weights, values)

    def _rates(self, holding: _Holding) -> Floats:
        """Work per second of the job with 0, 1, ... workers on this type."""
        job, most = holding.demand.job, holding.most
        if not holding.slower:
            paces = self._times.paces(job, self._gpu_type, most, holding.types_elsewhere)
            return self._times.rates(job, holding.elsewhere, holding.elsewhere + most) * paces
        with_slower = holding.elsewhere + count(holding.slower)
        workers = [with_slower + here - holding.replaced(here) for here in range(most + 1)]
        kept = [holding.kept(here) for here in range(most + 1)]
        beside = [holding.types_elsewhere + self._types(slower) for slower in kept]
        paces = self._times.paces_beside(job, self._gpu_type, beside)
        rates = self._times.rates(job, workers[0], max(workers))
        return np.take(rates, np.array(workers) - workers[0]) * paces

    def _pays(self, rates: Floats, seconds: Floats, held: int, cost_s: float) -> NDArray[np.bool_]:
        """Per larger size: whether growing from `held` pays before the GPUs have to be given back, or to the
        job's end."""
        now, grown = float(rates[held]), rates[held + 1 :].tolist()
        until_back = np.array([pays(now, each, self._stay_s, cost_s) for each in grown], np.bool_)
        return until_back | (seconds[held + 1 :] + cost_s < self._stay_s)

    def _place(self, holdings: Sequence[_Holding], sizes: Sequence[int], partly: bool) -> bool:
        """Find nodes for all sizes. False, with nothing taken: a part found none. `partly` allows smaller
        parts instead."""
        placed: list[tuple[_Holding, list[NodeShare]]] = []
        growing: list[tuple[int, _Holding, list[NodeShare]]] = []
        for holding, size in zip(holdings, sizes, strict=True):
            kept = holding.here.copy()
            cut(kept, holding.held - size, lambda share: True)
            self._servers.take(holding.demand.job.shape, kept)
            placed.append((holding, kept))
            if size > holding.held:
                growing.append((size - holding.held, holding, kept))
        # best fit decreasing
        growing.sort(key=lambda each: -each[0] * each[1].demand.job.shape.gpus)
        fits = [self._grow(holding, shares, more, partly) for more, holding, shares in growing]
        for holding, shares in placed:
            if all(fits):
                self._settle(holding, shares)
            else:
                self._servers.give(holding.demand.job.shape, shares)
        return all(fits)

    def _settle(self, holding: _Holding, shares: list[NodeShare]) -> None:
        """Write these workers on this type into the job's demand. Workers that they replace give their GPUs
        back."""
        slower = holding.slower.copy()
        replaced = cut(slower, holding.replaced(count(shares)), lambda share: True)
        self._servers.give(holding.demand.job.shape, replaced)
        holding.demand.flexible = [*holding.others, *slower, *shares]

    def _grow(self, holding: _Holding, shares: list[NodeShare], more: int, partly: bool) -> bool:
        """Add `more` workers to `shares`. If they do not fit, limits the job to what fits, and returns False.

        `partly`: add what fits, and return True.
        """
        shape = holding.demand.job.shape
        found = self._servers.place_flexible(shape, more, self._gpu_type)
        if found is None:
            room = self._servers.room(shape, self._gpu_type)
            holding.most = holding.held + room
            if partly and room:
                found = self._servers.place_flexible(shape, room, self._gpu_type)
        if found is None:
            return partly
        self._servers.take(shape, found)
        shares.extend(found)
        return True
