"""How long GPUs of a site stayed idle between jobs, from its accounting (Amoeba, figure 2a).

Nothing is guessed. Where the accounting does not tell how many GPUs of a node a job had, the time of that job
counts as unknown on its nodes. It counts neither as idle nor as used, and cuts intervals off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from flexo.clusters.simulated.nodes import NodeGroup
from flexo_simulation.formats.accounting import AccountedRun, Holders, Software
from flexo_simulation.idle_intervals import (
    Distribution,
    Hold,
    Interval,
    Order,
    distribution,
    intervals,
    peak,
    unknown_s,
)

_HOUR: Final = 3600.0
_DUMP_AGAIN: Final = "dump it again with NodeList before JobName in --format, as docs/howto/what-if.md has it"


@dataclass(frozen=True, slots=True)
class NotTold:
    """There are no figures, since the dump lacks what they need."""

    why: str

    def to_json(self) -> dict[str, object]:
        """The reason for `json.dumps`."""
        return {"not_told": self.why}


@dataclass(frozen=True, slots=True)
class IdleGpus:
    """The idle time of single GPUs while the dump tells all of what ran on them."""

    nodes: int
    """Nodes of which a job, or the user, tells the number of GPUs."""
    gpus: int
    """GPUs of these nodes: as the user said, else the most that were in use on each at one time."""
    unused_nodes: int
    """Nodes among `nodes` that no job in the dump used: the user said how many there are."""
    gpus_said: bool
    """Whether the user said how many GPUs a node has."""
    window_h: float
    """Hours from the first end of a run in the dump to the last one that could start."""
    idle_share: float | None
    """The part of all GPU time in the window in which a GPU had no job; None: it cannot be told."""
    known_gpu_h: float
    """GPU hours of which it is known, node by node, how many GPUs were idle. Intervals are of these."""
    idle_gpu_h: float
    """The part of `known_gpu_h` in which a GPU had no job."""
    unknown_gpu_h: float
    """All other GPU hours of the window."""
    unknown_runs: int
    """Runs on several nodes, in the window, whose GPUs nobody can tell by node."""
    nameless_runs: int
    """Runs in the window that name no node."""
    unknown_nodes: int
    """Nodes of which no job, nor the user, tells the number of GPUs."""
    one_user: str
    """The one user whose jobs the dump has; "": there are several, or it tells no user."""
    resize_s: float
    """Seconds that a malleable job loses at each change of its size."""
    readings: tuple[Distribution, ...]
    """One for each `Order`."""

    def to_json(self) -> dict[str, object]:
        """The figures for `json.dumps`."""
        readings = {each.order.value: asdict(each) | {"order": each.order.value} for each in self.readings}
        return asdict(self) | {"readings": readings}


def idle_gpus(
    holders: Holders | None,
    software: Software,
    gpus_per_node: int | None,
    resize_s: float,
    cluster: NodeGroup | None = None,
) -> IdleGpus | NotTold:
    """The idle GPUs of the nodes that the chosen runs used.

    `gpus_per_node`: as the user said, of each node; None: nobody said. `cluster`: all nodes, if the user said
    how many there are. Those that no run used count as idle.
    """
    if holders is None:
        return NotTold(f"{software.name}'s accounting does not tell which nodes a job had")
    if not holders.named:
        return NotTold(f"the dump has no column NodeList: {_DUMP_AGAIN}")
    names = {name for run in holders.chosen for name in run.node_names}
    if not names:
        return NotTold(f"no job in the dump names its nodes in NodeList: {_DUMP_AGAIN}")
    runs = (*holders.chosen, *holders.others)
    span = min(run.ended_at for run in runs), max(run.ready_at for run in runs)
    if span[0] >= span[1]:
        return NotTold(
            "there is no time of which the dump tells all. Such time begins with the first end of a job in "
            "the dump, and ends when the last job came. Take a longer dump"
        )
    nodes = _Nodes.of(runs, names, gpus_per_node)
    if nodes.belied:
        return NotTold(
            f"--gpus-per-node says {gpus_per_node}, but jobs had more on {nodes.belied} at one time. Say the "
            "number that every node has, or leave the option out. If it is right, dump times in seconds, "
            "with SLURM_TIME_FORMAT=%s before sacct"
        )
    if not nodes.gpus:
        return NotTold(
            "every job ran on several nodes, and sacct does not tell how many GPUs it had on each. "
            "If all nodes have the same number, say it with --gpus-per-node"
        )
    used = _Runs.of(runs, nodes, span, gpus_per_node)
    unused = max(0, cluster.count - len(names)) if cluster else 0
    if cluster and unused:
        nodes = nodes.with_unused(unused, cluster.gpus)
    return _figures(nodes, used, span, gpus_per_node, resize_s)


@dataclass(frozen=True, slots=True)
class _Nodes:
    """What was held on each node of which the number of GPUs is known."""

    holds: Mapping[str, Sequence[Hold]]
    nameless: Sequence[Hold]
    """What runs held that name no node: it can have been on any."""
    gpus: Mapping[str, int]
    unknown: int
    """Nodes that are left out."""
    unused: int
    """Nodes that no run used."""
    belied: str
    """A node that had more GPUs than the user said; "": none had."""

    @classmethod
    def of(cls, runs: Sequence[AccountedRun], names: Iterable[str], gpus_per_node: int | None) -> _Nodes:
        """The holds of `runs` on the nodes in `names`."""
        holds: dict[str, list[Hold]] = {name: [] for name in sorted(names)}
        said, belied = gpus_per_node or 0, ""
        for run in runs:
            hold = Hold(run.started_at, run.ended_at, gpus_on_each(run, gpus_per_node))
            for name in run.node_names or holds:
                if name in holds:
                    holds[name].append(hold)
                    if said and run.gpus > said * (run.nodes or len(run.node_names) or run.gpus):
                        belied = name
        peaks = {name: peak(on_node) for name, on_node in holds.items()}
        gpus = {name: max(said, most) for name, most in peaks.items() if said or most}
        belied = next((name for name, most in peaks.items() if said and most > said), belied)
        nameless = [Hold(run.started_at, run.ended_at, None) for run in runs if not run.node_names]
        return cls({name: holds[name] for name in gpus}, nameless, gpus, len(holds) - len(gpus), 0, belied)

    def with_unused(self, count: int, gpus: int) -> _Nodes:
        """With so many nodes more, of so many GPUs each, that are idle but for runs that name no node."""
        names = [f"unused {number}" for number in range(count)]
        return replace(
            self,
            holds={**self.holds, **dict.fromkeys(names, self.nameless)},
            gpus={**self.gpus, **dict.fromkeys(names, gpus)},
            unused=count,
        )


def gpus_on_each(run: AccountedRun, gpus_per_node: int | None) -> int | None:
    """The number of GPUs that the run had on each of its nodes; None: the accounting does not tell.

    sacct tells a run's GPUs on all its nodes together. On one node these are the node's. On several nodes
    they are known if the run had all GPUs of each.
    """
    if not run.node_names or not _names_all(run):
        return None
    if len(run.node_names) == 1:
        return run.gpus
    if gpus_per_node and run.gpus == gpus_per_node * len(run.node_names):
        return gpus_per_node
    return None


def _names_all(run: AccountedRun) -> bool:
    return run.nodes in (0, len(run.node_names))


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs in the window on nodes that count."""

    used_gpu_s: float | None
    """GPU seconds that they had on these nodes; None: nobody can tell."""
    unknown: int
    nameless: int
    one_user: str

    @classmethod
    def of(
        cls,
        runs: Iterable[AccountedRun],
        nodes: _Nodes,
        span: tuple[float, float],
        gpus_per_node: int | None,
    ) -> _Runs:
        """The runs, of all in the dump. A run on several nodes counts as a whole in what was used."""
        begin, end = span
        most_gpu_s = sum(nodes.gpus.values()) * (end - begin)
        used, unknown, nameless, partly = 0.0, 0, 0, 0
        users = set()
        for run in runs:
            users.add((run.user, run.account))
            here = sum(1 for name in run.node_names if name in nodes.gpus)
            seconds = min(run.ended_at, end) - max(run.started_at, begin)
            if seconds <= 0 or not (here or not run.node_names):
                continue
            nameless += not run.node_names
            on_each = gpus_on_each(run, gpus_per_node)
            unknown += here > 0 and on_each is None
            partly += on_each is None and (here < len(run.node_names) or not _names_all(run))
            used += seconds * (run.gpus if on_each is None else on_each * here)
        # without the user's word, a node's GPUs are those that jobs tell of: those of other jobs may be more
        told = not nameless and not partly and (gpus_per_node is not None or not unknown)
        told = told and used <= most_gpu_s * (1 + 1e-9)
        one_user = users.pop()[0] if len(users) == 1 else ""
        return cls(used if told else None, unknown, nameless, one_user)


def _figures(
    nodes: _Nodes, runs: _Runs, span: tuple[float, float], gpus_per_node: int | None, resize_s: float
) -> IdleGpus:
    gpus, seconds = sum(nodes.gpus.values()), span[1] - span[0]
    unknown_gpu_s = sum(each * unknown_s(nodes.holds[name], span) for name, each in nodes.gpus.items())
    found = {order: list(_intervals(nodes, span, order)) for order in Order}
    share = None if runs.used_gpu_s is None else 1 - runs.used_gpu_s / (gpus * seconds)
    return IdleGpus(
        nodes=len(nodes.gpus),
        gpus=gpus,
        unused_nodes=nodes.unused,
        gpus_said=gpus_per_node is not None,
        window_h=seconds / _HOUR,
        idle_share=share,
        known_gpu_h=(gpus * seconds - unknown_gpu_s) / _HOUR,
        idle_gpu_h=sum(each.length_s * each.gpus for each in found[Order.LAST]) / _HOUR,
        unknown_gpu_h=unknown_gpu_s / _HOUR,
        unknown_runs=runs.unknown,
        nameless_runs=runs.nameless,
        unknown_nodes=nodes.unknown,
        one_user=runs.one_user,
        resize_s=resize_s,
        readings=tuple(distribution(each, order) for order, each in found.items()),
    )


def _intervals(nodes: _Nodes, span: tuple[float, float], order: Order) -> Iterator[Interval]:
    for name, gpus in nodes.gpus.items():
        yield from intervals(nodes.holds[name], gpus, span, order)
