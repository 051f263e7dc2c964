"""What the plans of chaos on a whole cluster contain, and how seeds are written on the command line."""

from __future__ import annotations

import argparse

import pytest
from chaos import seeds
from chaos.system.plan import LINKS, OF_A_JOB, Deed, Target, plan

pytestmark = pytest.mark.thorough


def test_a_seed_is_the_same_plan_always_and_another_seed_another() -> None:
    assert plan(7) == plan(7)
    assert plan(7) != plan(8)
    assert plan(7, minutes=2.0) == plan(7, minutes=2.0)


def test_twenty_seeds_hit_everything_in_every_way_that_fits_it() -> None:
    hit = {(fault.target, fault.deed) for seed in range(1, 21) for fault in plan(seed).faults}
    links = {(target, deed) for target in LINKS for deed in (Deed.CUT, Deed.STALL)}
    others = {(target, deed) for target in Target if target not in LINKS for deed in (Deed.KILL, Deed.HOLD)}
    assert hit == links | others


def test_faults_lie_within_the_time_and_no_target_fails_again_before_the_others_have() -> None:
    for seed in range(1, 21):
        faults = plan(seed, minutes=2.0).faults
        assert len(faults) == 12
        assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
        assert 0 < faults[0].at_s < faults[-1].at_s < 120
        assert {fault.target for fault in faults[:8]} == set(Target)


def test_every_plan_has_inference_and_either_rigid_jobs_or_a_base_that_needs_a_lent_server() -> None:
    for seed in range(1, 21):
        this = plan(seed)
        assert sum(job.inference for job in this.arrivals) == 3
        rigid = [job for job in this.arrivals if not job.inference]
        fungible = [job for job in this.elastic if job.fungible]
        assert (len(rigid), len(fungible), this.filler is None) in {(3, 0, True), (0, 1, False)}
        assert all(job.smallest < job.largest or job.fungible for job in this.elastic)
        assert all(fault.job < len(this.elastic) for fault in this.faults if fault.target in OF_A_JOB)


def test_seeds_are_written_as_numbers_and_ranges() -> None:
    assert seeds.parse("1-3,7,2") == (1, 2, 3, 7)
    assert seeds.parse("5") == (5,)
    for text in ("", "3-1", "a", "1-", "-1", "1..3", "1-999999"):
        with pytest.raises(argparse.ArgumentTypeError, match="seeds and ranges"):
            seeds.parse(text)
