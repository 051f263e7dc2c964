"""Other settings while the loop goes round: they count from the next cycle on, and grants stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from controller_world import TIME_LIMIT_S, World

from flexo.config import Settings
from flexo.control.views import Unheeded


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def changed(world: World, **controller: object) -> Settings:
    rules = world.settings.controller.model_copy(update=controller)
    return world.settings.model_copy(update={"controller": rules})


def test_other_rules_count_from_the_next_cycle_on_and_what_stands_stands(world: World) -> None:
    first, second = world.job(1, "1-4"), world.job(2, "1-2", "t3")
    world.go(30)
    satellites = world.cluster.satellites()
    names = dict(first.own), dict(second.own)
    world.controller.reconfigure(
        changed(world, policy="greedy", time_limit_s=600, min_interval_s=1.0), "taken over: much", Unheeded()
    )
    assert world.last("daemon") == "taken over: much"
    world.go(2 * TIME_LIMIT_S)
    assert world.cluster.satellites() == satellites
    assert (first.own, second.own) == names
    assert world.controller.status().policy == "greedy"
    assert {seconds for _, seconds in world.cluster.extended[-2:]} == {600}
    assert first.told[-1][0].time_limit_s == 600
    assert world.controller.status().trouble == ""


def test_what_of_the_configuration_is_not_gone_by_stands_in_the_status_until_it_is(world: World) -> None:
    world.job()
    world.go(10)
    refused = Unheeded(refused="the configuration is not taken over")
    world.controller.reconfigure(world.settings, refused.refused, refused)
    world.go(20)
    assert world.controller.status().troubles == (refused.refused,)
    world.cluster.unreachable = "squeue says nothing"
    world.go(2)
    said = ("Slurm does not answer: squeue says nothing", refused.refused)
    assert world.controller.status().troubles == said
    assert world.controller.status().trouble == "; ".join(said)
    world.cluster.unreachable = ""
    world.controller.reconfigure(world.settings, "configuration read again: nothing has changed", Unheeded())
    world.go(2)
    assert world.controller.status().trouble == ""


def test_settings_that_need_a_restart_are_no_trouble_and_stand_in_the_status_by_themselves(
    world: World,
) -> None:
    world.job()
    world.go(10)
    waits = Unheeded(needs_restart=("[service] address",))
    world.controller.reconfigure(world.settings, f"configuration read again: {waits}", waits)
    world.go(20)
    status = world.controller.status()
    assert (status.troubles, status.needs_restart) == ((), ("[service] address",))
    assert world.last("daemon").endswith("needs a restart of flexod: [service] address")


def test_a_grant_that_its_leader_has_not_submitted_yet_outlives_a_change(world: World) -> None:
    world.cluster.starts = False
    leader = world.job()
    world.go(4)
    told = {offer.grant_id for offer in leader.told[-1]}
    world.controller.reconfigure(
        changed(world, time_limit_s=600), "taken over: [controller] time_limit_s", Unheeded()
    )
    world.go(4)
    assert {offer.grant_id for offer in leader.told[-1]} == told
    assert world.kinds().count("grow") == 1
