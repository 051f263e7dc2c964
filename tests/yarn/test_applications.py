"""A real ResourceManager and real NodeManagers, spoken to from Python: what flexo's jobs rely on."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from applications import SMALL_MIB, Application, wait_for

from flexo_lab.yarn import YarnLab, wait_for_nodes
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn import records
from flexo_yarn.application_master import Ask
from flexo_yarn.ipc.errors import RemoteError
from flexo_yarn.launch import command_line
from flexo_yarn.node_managers import NodeManagers
from flexo_yarn.resource_manager import ResourceManager
from flexo_yarn.site_settings import FLEX_QUEUE

SCRIPTS = Path(__file__).parent / "scripts"
FOREVER = "while :; do sleep 0.2; done"
PREEMPTED, RELEASED = -102, -100


def test_a_container_on_the_node_that_was_asked_for_runs_a_script_and_its_exit_code_comes_back(
    lab: YarnLab,
) -> None:
    application = Application.submit(lab, FLEX_QUEUE)
    for number in (1, 2):
        (container,) = application.grow(10 + number, gpus=2, node=lab.yarn_layout.node(number))
        assert container.node_id.host == lab.yarn_layout.node(number)
        assert (container.priority.priority, records.gpus(container.resource)) == (10 + number, 2)
        application.start(container, f"exit {40 + number}")
        text = records.container_text(container.id)
        status = application.wait_until("its end", lambda text=text: application.ended.get(text))
        assert status.exit_status == 40 + number
    application.end()


def test_a_request_that_was_withdrawn_brings_nothing(lab: YarnLab) -> None:
    """YARN would reserve a node for it, and give that to the job long after it had stopped waiting."""
    application = Application.submit(lab, FLEX_QUEUE)
    application.grow(1, gpus=4, containers=2)
    application.master.ask(Ask(2, records.resource(SMALL_MIB, 1, 4)))
    application.beat()
    application.master.withdraw(2)
    application.beat()
    application.master.release([each.id for each in application.held.values()])
    application.wait_until("the release", lambda: len(application.ended) == 2)
    for _ in range(20):
        application.beat()
        time.sleep(0.1)
    assert not application.held


def test_an_ordinary_application_takes_the_flex_queues_containers_and_a_warning_comes_long_before(
    lab: YarnLab,
) -> None:
    flex = Application.submit(lab, FLEX_QUEUE)
    held = flex.grow(1, gpus=2, containers=4)
    for each in held:
        flex.start(each, FOREVER)
    ordinary = Application.submit(lab, "default", user="games")
    ordinary.master.ask(Ask(1, records.resource(SMALL_MIB, 1, 2)))
    flex.wait_until("the warning", lambda: ordinary.beat() and flex.warned_at)
    flex.wait_until("the preemption", lambda: ordinary.beat() and flex.ended)
    taken_at = time.monotonic()
    for text, status in flex.ended.items():
        assert status.exit_status == PREEMPTED
        assert taken_at - flex.warned_at[text] > 10
    ordinary.wait_until("its container", lambda: flex.beat() and ordinary.held)


def test_who_heeds_the_warning_gives_the_gpus_at_once(lab: YarnLab) -> None:
    flex = Application.submit(lab, FLEX_QUEUE)
    flex.grow(1, gpus=2, containers=4)
    ordinary = Application.submit(lab, "default", user="games")
    ordinary.master.ask(Ask(1, records.resource(SMALL_MIB, 1, 2)))
    asked_at = time.monotonic()
    flex.wait_until("the warning", lambda: ordinary.beat() and flex.warned_at)
    flex.master.release([flex.held[text].id for text in flex.warned_at])
    ordinary.wait_until("its container", lambda: flex.beat() and ordinary.held)
    assert time.monotonic() - asked_at < 15
    assert {status.exit_status for status in flex.ended.values()} <= {RELEASED}


def test_a_resourcemanager_that_is_killed_takes_nothing_with_it_and_hears_of_what_was_asked(
    lab: YarnLab,
) -> None:
    application = Application.submit(lab, FLEX_QUEUE)
    (container,) = application.grow(1, gpus=4)
    application.start(container, FOREVER)
    application.grow(2, gpus=4)
    application.master.ask(Ask(3, records.resource(SMALL_MIB, 1, 4)))  # no GPU is left for it
    application.beat()
    lab.kill("rm")
    lab.start("rm")
    application.wait_until("the ResourceManager", lambda: application.resynchronized)
    wait_for_nodes(lab)
    second = next(each for each in application.held.values() if each.priority.priority == 2)
    application.master.release([second.id])
    third = application.wait_until(
        "what had been asked for",
        lambda: [each for each in application.held.values() if each.priority.priority == 3],
    )
    assert third[0].priority.priority == 3
    status = NodeManagers(application.master.nm_tokens).status(container.node_id, container.id)
    assert status.state == pb.C_RUNNING
    application.end()


@pytest.mark.thorough
def test_a_nodemanager_that_is_killed_and_started_again_has_its_containers(lab: YarnLab) -> None:
    application = Application.submit(lab, FLEX_QUEUE)
    (container,) = application.grow(1, gpus=1, node=lab.yarn_layout.node(1))
    marker = lab.scratch / "still-running"
    application.start(container, f"while :; do touch {marker}; sleep 0.2; done")
    wait_for("the script", marker.exists)
    lab.kill("n1")
    lab.start("n1")
    wait_for_nodes(lab)
    for _ in range(20):
        application.beat()
        time.sleep(0.1)
    assert not application.ended
    assert time.time() - marker.stat().st_mtime < 5
    application.end()


@pytest.mark.thorough
def test_an_applicationmaster_in_a_container_registers_and_runs_a_container_after_a_restart_too(
    lab: YarnLab, client: ResourceManager
) -> None:
    """The other kind: YARN starts it, and its token is in its credentials file."""
    script = SCRIPTS / "application_master.py"
    command = [sys.executable, str(script), lab.scheduler[0][0], str(lab.scratch)]
    context = pb.ApplicationSubmissionContext(
        application_id=client.new_application().application_id,
        name="managed",
        queue="default",
        application_type="FLEXO",
        resource=records.resource(SMALL_MIB, 1, 0),
        am_container=pb.ContainerLaunchContext(command=[command_line(command)]),
    )
    client.submit(context)
    wait_for("its first container", (lab.scratch / "container-1").exists)
    lab.kill("rm")
    lab.start("rm")
    wait_for_nodes(lab)
    (lab.scratch / "go-on").touch()

    def report() -> pb.ApplicationReport | None:
        found = client.application(context.application_id)
        return found if found.state in (pb.FINISHED, pb.FAILED, pb.KILLED) else None

    ended = wait_for("its end", report)
    assert ended.final_status == pb.APP_SUCCEEDED, ended.diagnostics
    assert (lab.scratch / "container-2").exists()


def test_nobody_ends_or_moves_an_application_of_somebody_else(lab: YarnLab) -> None:
    application = Application.submit(lab, FLEX_QUEUE)
    stranger = ResourceManager(lab.clients, user="games")
    for attempt in (
        lambda: stranger.kill(application.application_id, "mine"),
        lambda: stranger.set_priority(application.application_id, 9),
        lambda: stranger.set_lifetime(application.application_id, 1_893_456_000),
    ):
        with pytest.raises(RemoteError):
            attempt()
    report = stranger.application(application.application_id)
    assert not report.HasField("am_rm_token")
    stranger.close()
    application.end()
