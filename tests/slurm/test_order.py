"""flexod on a real cluster, setting the order in which pending jobs start."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from conftest import LabFactory

from flexo.clusters.slurm.priorities import BAND
from flexo_lab import Lab, Profile

BOUND_S = 90


@contextmanager
def configured(lab: Lab, lines: str) -> Iterator[None]:
    """flexod with these lines in [controller] besides."""
    toml = lab.layout.flexo_toml
    before = toml.read_text()
    toml.write_text(before.replace("[controller]", f"[controller]\n{lines}"))
    lab.restart_flexod()
    try:
        yield
    finally:
        toml.write_text(before)
        lab.restart_flexod()


@pytest.fixture
def ordering(lab: Lab) -> Iterator[Lab]:
    """The shared lab, whose flexod puts the shortest job first meanwhile (lyra, by time limits)."""
    with configured(lab, 'order = "policy"'):
        yield lab


def submit(lab: Lab, minutes: int, *options: str) -> int:
    usual = ["--parsable", "--output=/dev/null", "--ntasks=1", f"--time={minutes}", "--wrap=exec sleep 600"]
    where = ["--partition=train", "--nodelist=t1", "--gres=gpu:4"]
    return int(lab.run(["sbatch", *usual, *where, *options], user="games").stdout)


def seen(lab: Lab, job_id: int) -> tuple[str, int]:
    """Its state and priority."""
    state, priority = lab.run(["squeue", "-h", f"-j{job_id}", "-O", "State,PriorityLong"]).stdout.split()
    return state, int(priority)


def wait(what: Callable[[], object], sentence: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not what():
        assert time.monotonic() < deadline, f"{sentence} within {BOUND_S} s"
        time.sleep(0.5)


def test_a_short_job_submitted_later_starts_before_a_longer_one(ordering: Lab) -> None:
    holder = submit(ordering, 120)
    wait(lambda: seen(ordering, holder)[0] == "RUNNING", "the node is taken")
    long, held, by_hand = (submit(ordering, 60, *options) for options in ([], ["--hold"], []))
    inference = submit(ordering, 10, "--partition=infer", "--nodelist=i1", "--begin=now+1hour")
    untouched = seen(ordering, inference)
    wait(lambda: seen(ordering, by_hand)[1] in BAND, "both are put in order")
    ordering.run(["scontrol", "update", f"JobId={by_hand}", "Priority=1000"])
    short = submit(ordering, 5)
    wait(lambda: seen(ordering, short)[1] > seen(ordering, long)[1], "the short job comes first")
    assert seen(ordering, short)[1] in BAND

    ordering.run(["scancel", str(holder)])
    wait(lambda: seen(ordering, short)[0] == "RUNNING", "the short job starts")
    assert seen(ordering, long)[0] == "PENDING"
    assert seen(ordering, held)[1] == 0
    assert seen(ordering, by_hand) == ("PENDING", 1000)
    assert seen(ordering, inference) == untouched
    assert trouble(ordering) == ""


def trouble(lab: Lab) -> str:
    return str(json.loads(lab.run(["flexo", "status", "--json"]).stdout)["trouble"])


def test_an_operator_puts_jobs_in_order_against_slurm_s_own_factors_and_reads_shares(
    make_lab: LabFactory,
) -> None:
    lab = make_lab(nodes=1, infer_nodes=0, profile=Profile.ACCOUNTING)
    try:
        with configured(lab, 'order = "policy"\nfairshare_weight = 0.5'):
            holder = submit(lab, 120)
            wait(lambda: seen(lab, holder)[0] == "RUNNING", "the node is taken")
            urgent = submit(lab, 60, "--qos=urgent")
            short = submit(lab, 5)
            wait(lambda: seen(lab, short)[1] > seen(lab, urgent)[1] > 1e9, "both are put in order")
            assert trouble(lab) == ""
        assert seen(lab, short)[1] > seen(lab, urgent)[1] > 1e9
        lab.run(["scontrol", "release", str(urgent)])
        wait(lambda: seen(lab, urgent)[1] < 1e9, "Slurm works out its own again")
    finally:
        lab.down()
