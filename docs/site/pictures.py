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
    return Drawing(860, 560, label, (*_controller_host(), *_job_nodes(), *_ways()))


def _controller_host() -> Iterator[Box]:
    yield Box(20, 20, 150, 170, ("People",), "room")
    yield Box(36, 52, 118, 34, ("sbatch",))
    yield Box(36, 96, 118, 34, ("flexo jobs, why",))
    yield Box(36, 140, 118, 34, ("flexo-web",))
    yield Box(300, 20, 540, 170, ("A host beside slurmctld",), "room")
    yield Box(320, 52, 130, 122, ("slurmctld",), "lent")
    yield Box(560, 46, 264, 132, ("flexod",), "room")
    yield Box(572, 74, 116, 28, ("service",))
    yield Box(696, 74, 116, 28, ("controller",), "busy")
    yield Box(572, 108, 116, 28, ("clusters/slurm",))
    yield Box(696, 108, 116, 28, ("policies",))
    yield Box(572, 142, 116, 28, ("event store",))
    yield Box(696, 142, 116, 28, ("loans, pMaster",))


def _job_nodes() -> Iterator[Box]:
    for x, title, style in (
        (20, "A node of the base job", "room"),
        (450, "A satellite: a preemptible job on one node", "room"),
    ):
        yield Box(x, 300, 390, 240, (title,), style)
        yield Box(x + 20, 336, 350, 62, ("agent", "one for each node"))
        yield Box(x + 20, 460, 166, 60, ("worker", "the script, one rank"), "busy")
        yield Box(x + 204, 460, 166, 60, ("worker", "the script, one rank"), "busy")
    yield Box(280, 344, 104, 46, ("leader", "of this job"), "busy")


def _ways() -> Iterator[Arrow]:
    yield Arrow(((154, 69), (320, 69)), ("submits the base job",), (182, 62))
    yield Arrow(((154, 113), (236, 113), (236, 206), (580, 206), (580, 178)), ("ask and steer",), (160, 107))
    yield Arrow(((154, 157), (236, 157)))
    yield Arrow(
        ((560, 122), (450, 122)), ("polls nodes and", "jobs; extends and", "cancels satellites"), (456, 88)
    )
    yield Arrow(((330, 344), (330, 174)), ("submits satellites,", "as the user"), (322, 240), anchor="end")
    yield Arrow(
        ((366, 344), (366, 230), (630, 230), (630, 178)),
        ("grants to the leader, reports to flexod", "(gRPC; each proves by MUNGE who it is)"),
        (376, 250),
        both=True,
    )
    yield Arrow(((390, 367), (470, 367)), ("gRPC",), (414, 360), both=True)
    for x in (20, 450):
        for worker in (103, 287):
            yield Arrow(((x + worker, 398), (x + worker, 460)), both=True)
        yield Arrow(((x + 186, 490), (x + 204, 490)), both=True)
    yield Arrow(((390, 490), (470, 490)), ("collectives",), (400, 482), both=True)


def satellite() -> Drawing:
    """What happens to a satellite from its grant to its end, and who does it."""
    label = "The life of a satellite: granted, pending, warming up, training, leaving, and who does what"
    return Drawing(860, 500, label, (*_lanes(), *_stages(), *_deeds()))


_LANES: Final = (("flexod", 170), ("the job's leader", 342), ("Slurm", 514), ("new workers", 686))
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
        yield Box(x, 16, 160, 468, (name,), "room")


def _stages() -> Iterator[Box | Arrow]:
    for name, y in _STAGES:
        yield Box(20, y, 110, 32, (name,), "busy" if name == "training" else "part")
    for (_, y), (_, below) in pairwise(_STAGES):
        yield Arrow(((75, y + 32), (75, below)))


def _deeds() -> Iterator[Box | Arrow]:
    yield Box(182, 54, 136, 44, ("sees idle GPUs,", "grants them"))
    yield Box(354, 54, 136, 44, ("submits a job for", "the user: sbatch"))
    yield Box(526, 134, 136, 44, ("starts it where", "nobody else waits"))
    yield Box(698, 214, 136, 44, ("import, build the", "model, warm up"))
    yield Box(354, 214, 136, 44, ("prepares the next", "generation"))
    yield Box(698, 294, 136, 44, ("train as ranks of", "the job"), "busy")
    yield Box(182, 294, 136, 44, ("extends the short", "time limit"))
    yield Box(182, 372, 136, 44, ("withdraws the", "grant"))
    yield Box(526, 372, 136, 44, ("takes the node", "back: SIGTERM"), "lent")
    yield Box(698, 384, 136, 44, ("finish the mini-", "batch, exit with 0"))
    yield Box(354, 384, 136, 44, ("switches the", "others, ends it"))
    yield Arrow(((318, 76), (354, 76)))
    yield Arrow(((490, 76), (594, 76), (594, 134)))
    yield Arrow(((662, 156), (766, 156), (766, 214)))
    yield Arrow(((698, 236), (490, 236)), ("ready",), (574, 229))
    yield Arrow(((422, 258), (422, 316), (698, 316)), ("all switch between two mini-batches",), (432, 309))
    yield Arrow(((318, 394), (354, 400)))
    yield Arrow(((526, 400), (490, 406)))
    yield Arrow(((490, 418), (508, 418), (508, 440), (766, 440), (766, 428)), ("told to leave",), (560, 455))


def tiers() -> Drawing:
    """Partitions by their priority tier, over the nodes that are in them."""
    label = "Partitions above each other by priority tier: each takes GPUs back from those below it"
    return Drawing(860, 430, label, (*_tier_boxes(), *_tier_ways()))


def _tier_boxes() -> Iterator[Box | Words]:
    yield Words(150, 32, "Training nodes", "title")
    yield Words(520, 32, "Inference servers, where some are lent", "title")
    for y, tier in ((82, 20), (162, 10), (242, 2), (322, 1)):
        yield Words(20, y, f"tier {tier}", "title")
    yield Box(520, 48, 320, 60, ("infer", "the inference cluster's jobs: PreemptMode=OFF"), "busy")
    yield Box(150, 128, 340, 60, ("train", "users' jobs, bases among them: PreemptMode=OFF"), "busy")
    yield Box(520, 208, 320, 60, ("borrowed", "bases that may move: PreemptMode=REQUEUE"), "lent")
    yield Box(150, 288, 340, 60, ("flex", "satellites: PreemptMode=CANCEL"))
    yield Box(520, 288, 320, 60, ("borrowed-flex", "satellites: PreemptMode=CANCEL"))
    yield Words(
        150, 384, "A pending job takes GPUs back from jobs of lower tiers on its nodes. Slurm does it,"
    )
    yield Words(150, 402, "with or without flexod. Satellites have GraceTime to finish their mini-batch.")


def _tier_ways() -> Iterator[Arrow]:
    yield Arrow(((320, 188), (320, 288)), ("takes back",), (330, 242))
    yield Arrow(((640, 108), (640, 208)), ("takes back",), (650, 162))
    yield Arrow(((640, 268), (640, 288)))


def main() -> None:
    """Write all files."""
    for name, drawing in drawings().items():
        (IMAGES / f"{name}.svg").write_text(drawing.svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
