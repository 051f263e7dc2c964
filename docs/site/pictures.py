"""`make pictures`: draws docs/images/architecture.svg, satellite.svg and tiers.svg.

A test compares the files with what this program draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

from drawing import Arrow, Box, Drawing, Words

IMAGES: Final = Path(__file__).resolve().parents[1] / "images"


def drawings() -> Mapping[str, Drawing]:
    """By the name of the file in docs/images, without `.svg`."""
    return {"architecture": architecture(), "satellite": satellite(), "tiers": tiers()}


def architecture() -> Drawing:
    """Processes, where they run, and what they say to each other."""
    label = "flexod beside slurmctld, the agents and workers of a job on its nodes, and the ways between them"
    return Drawing(860, 540, label, (*_controller_host(), *_job_nodes(), *_ways()))


def _controller_host() -> Iterator[Box]:
    yield Box(20, 20, 160, 170, ("People",), "room")
    yield Box(34, 52, 132, 34, ("sbatch",))
    yield Box(34, 96, 132, 34, ("flexo jobs, why",))
    yield Box(34, 140, 132, 34, ("flexo-web",))
    yield Box(330, 20, 510, 170, ("The controller's host",), "room")
    yield Box(344, 52, 110, 122, ("slurmctld",), "lent")
    yield Box(566, 46, 262, 132, ("flexod",), "room")
    for x, names in (
        (576, ("service", "clusters/slurm", "event store")),
        (702, ("controller", "policies", "loans, pMaster")),
    ):
        for row, name in enumerate(names):
            yield Box(x, 74 + 34 * row, 120, 28, (name,), "busy" if name == "controller" else "part")


def _job_nodes() -> Iterator[Box]:
    for x, title in ((20, "A node of the base job"), (470, "A satellite: a job on one node")):
        yield Box(x, 300, 370, 220, (title,), "room")
        yield Box(x + 20, 336, 330, 58, ("agent", "one for each node"))
        yield Box(x + 20, 446, 140, 54, ("worker", "runs the script"), "busy")
        yield Box(x + 210, 446, 140, 54, ("worker", "runs the script"), "busy")
    yield Box(272, 342, 96, 46, ("leader", "of the job"), "busy")


def _ways() -> Iterator[Arrow]:
    yield Arrow(((166, 69), (344, 69)), ("submits the base job",), (190, 62))
    yield Arrow(((166, 113), (250, 113), (250, 206), (590, 206), (590, 178)), ("ask and steer",), (190, 106))
    yield Arrow(((166, 157), (250, 157)))
    yield Arrow(((576, 122), (454, 122)), ("polls; extends", "and cancels", "satellites"), (464, 84))
    yield Arrow(((352, 342), (352, 174)), ("submits satellites,", "as the user"), (342, 246), anchor="end")
    yield Arrow(
        ((360, 342), (360, 230), (640, 230), (640, 178)),
        ("grants to the leader, reports to flexod", "(gRPC; each proves by MUNGE who it is)"),
        (372, 250),
        both=True,
    )
    yield Arrow(((370, 365), (490, 365)), ("gRPC",), (415, 358), both=True)
    for x in (20, 470):
        for worker in (90, 280):
            yield Arrow(((x + worker, 394), (x + worker, 446)), both=True)
        yield Arrow(((x + 160, 473), (x + 210, 473)), both=True)
    yield Arrow(((370, 473), (490, 473)), ("collectives",), (397, 466), both=True)


def satellite() -> Drawing:
    """What happens to a satellite from its grant to its end, and who does it."""
    label = "The life of a satellite: granted, pending, warming up, training, leaving, and who does what"
    return Drawing(860, 500, label, (*_lanes(), *_stages(), *_deeds()))


_LANES: Final = (("flexod", 160), ("the job's leader", 334), ("Slurm", 508), ("new workers", 682))
"""Who acts, and where the lane begins."""
_STAGES: Final = (
    ("granted", 60),
    ("pending", 140),
    ("warming", 220),
    ("training", 300),
    ("leaving", 390),
)
"""The states of a grant (flexo.model.elastic.SatelliteState), and where they begin."""


def _lanes() -> Iterator[Box]:
    for name, x in _LANES:
        yield Box(x, 16, 162, 468, (name,), "room")


def _stages() -> Iterator[Box | Arrow]:
    for name, y in _STAGES:
        yield Box(20, y, 110, 32, (name,), "busy" if name == "training" else "part")
    for (_, y), (_, below) in pairwise(_STAGES):
        yield Arrow(((75, y + 32), (75, below)))


def _deeds() -> Iterator[Box | Arrow]:
    yield Box(166, 54, 150, 44, ("sees idle GPUs,", "grants them"))
    yield Box(340, 54, 150, 44, ("submits a job for", "the user: sbatch"))
    yield Box(514, 134, 150, 44, ("starts it where", "nobody else waits"))
    yield Box(688, 214, 150, 44, ("import, build the", "model, warm up"))
    yield Box(340, 214, 150, 44, ("prepares the next", "generation"))
    yield Box(688, 294, 150, 44, ("train as ranks of", "the job"), "busy")
    yield Box(166, 294, 150, 44, ("extends the short", "time limit"))
    yield Box(166, 384, 150, 44, ("withdraws the", "grant"))
    yield Box(514, 384, 150, 44, ("takes the node", "back: SIGTERM"), "lent")
    yield Box(688, 384, 150, 44, ("finish the mini-", "batch, exit with 0"))
    yield Box(340, 384, 150, 44, ("switches the", "others, ends it"))
    yield Arrow(((316, 76), (340, 76)))
    yield Arrow(((490, 76), (589, 76), (589, 134)))
    yield Arrow(((664, 156), (763, 156), (763, 214)))
    yield Arrow(((688, 236), (490, 236)), ("ready",), (574, 229))
    yield Arrow(((415, 258), (415, 316), (688, 316)), ("all switch between two mini-batches",), (432, 309))
    yield Arrow(((316, 406), (340, 406)))
    yield Arrow(((514, 406), (490, 406)))
    yield Arrow(((415, 428), (415, 452), (763, 452), (763, 428)), ("told to leave",), (524, 468))


def tiers() -> Drawing:
    """Partitions by their priority tier, over the nodes that are in them."""
    label = "Partitions above each other by priority tier: each takes GPUs back from those below it"
    return Drawing(860, 448, label, (*_tier_boxes(), *_tier_ways()))


def _tier_boxes() -> Iterator[Box | Words]:
    yield Words(110, 32, "Training nodes", "title")
    yield Words(490, 32, "Inference servers, where some are lent", "title")
    for y, tier in ((82, 20), (172, 10), (262, 2), (352, 1)):
        yield Words(20, y, f"tier {tier}", "title")
    yield Box(490, 48, 350, 60, ("infer", "the inference cluster's jobs", "PreemptMode=OFF"), "busy")
    yield Box(110, 138, 350, 60, ("train", "users' jobs, base jobs among them", "PreemptMode=OFF"), "busy")
    yield Box(490, 228, 350, 60, ("borrowed", "base jobs that may move", "PreemptMode=REQUEUE"), "lent")
    yield Box(110, 318, 350, 60, ("flex", "satellites", "PreemptMode=CANCEL"))
    yield Box(490, 318, 350, 60, ("borrowed-flex", "satellites", "PreemptMode=CANCEL"))
    yield Words(110, 412, "A pending job takes GPUs back from jobs of lower tiers on its nodes.")
    yield Words(
        110, 430, "Slurm does it, with or without flexod. A satellite has GraceTime to finish its mini-batch."
    )


def _tier_ways() -> Iterator[Arrow]:
    yield Arrow(((285, 198), (285, 318)), ("takes back",), (295, 262))
    yield Arrow(((665, 108), (665, 228)), ("takes back",), (675, 172))
    yield Arrow(((665, 288), (665, 318)), ("takes back",), (675, 307))


def main() -> None:
    """Write all files."""
    for name, drawing in drawings().items():
        (IMAGES / f"{name}.svg").write_text(drawing.svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
