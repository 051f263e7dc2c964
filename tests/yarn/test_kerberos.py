"""A cluster with Kerberos: who may do what, with whose tickets, and a job that flexod lets grow."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from applications import require_yarn, submission, wait_for
from yarn_jobs import ENVIRONMENT, FLEXO, SCRIPTS, submit

from flexo.clusters.yarn.owners import NotarizedSecrets, uid_of
from flexo_lab.yarn import Protection, YarnLab, YarnLabSpec, bring_up_yarn, kerberos, wait_for_nodes
from flexo_protos.credentials import Munge
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_protos.job_secret import JobSecret, fingerprint, for_flexod
from flexo_yarn import tags
from flexo_yarn.ipc.errors import RemoteError
from flexo_yarn.kerberos import NoTickets, Tickets
from flexo_yarn.site_settings import FLEX_QUEUE

SMALL = ("--workers", "1", "--memory", "512M")


def secure(name: str, protection: Protection, nodes: int, *, flexod: bool) -> Iterator[YarnLab]:
    require_yarn()
    if reason := kerberos.why_unavailable():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    spec = YarnLabSpec(
        name=f"{name}-{os.getpid()}", nodes=nodes, kerberos=True, protection=protection, flexod=flexod
    )
    lab = bring_up_yarn(spec)
    yield lab
    lab.down()


@pytest.fixture(scope="module")
def secure_lab() -> Iterator[YarnLab]:
    yield from secure("secure", Protection.AUTHENTICATION, 2, flexod=True)


def keytab_of(lab: YarnLab, user: str) -> tuple[str, ...]:
    layout = lab.yarn_layout
    return ("--keytab", str(layout.keytab(user)), "--principal", layout.principal(user))


def with_cache(cache: Path) -> tuple[str, ...]:
    return ("env", f"KRB5CCNAME=FILE:{cache}")


def kinit(lab: YarnLab, user: str, cache: Path, *options: str) -> None:
    layout = lab.yarn_layout
    keytab = str(layout.keytab(user))
    lab.run([*with_cache(cache), "kinit", *options, "-k", "-t", keytab, layout.principal(user)])


def refusal(lab: YarnLab, *words: str, shell: tuple[str, ...] = ()) -> str:
    """What `flexo yarn submit` says when it refuses."""
    command = [*shell, FLEXO, "yarn", "submit", *words, "--env", ENVIRONMENT, "--", "python", "counting.py"]
    done = lab.run(command, check=False, cwd=SCRIPTS)
    assert done.returncode == 1, done.stdout
    return done.stderr


def restart(lab: YarnLab, file: str, settings: dict[str, str]) -> None:
    """Kill the ResourceManager, and start it with more settings."""
    path = lab.yarn_layout.conf("rm") / file
    tree = ElementTree.parse(path)
    for name, value in settings.items():
        setting = ElementTree.SubElement(tree.getroot(), "property")
        ElementTree.SubElement(setting, "name").text = name
        ElementTree.SubElement(setting, "value").text = value
    tree.write(path)
    lab.kill("rm")
    lab.start("rm")
    wait_for_nodes(lab)


def test_a_job_of_a_keytab_grows_and_leaves_nothing(secure_lab: YarnLab, tmp_path: Path) -> None:
    options = (*keytab_of(secure_lab, "ada"), "--gpus", "1", "--memory", "1G")
    job = submit(secure_lab, tmp_path, "counting.py", elastic="2-4", options=options)
    job.wait_for_size(4)
    assert job.report().user == "ada"
    client = secure_lab.client("ada")
    (flex,) = client.applications(states=(pb.RUNNING,), queues=(FLEX_QUEUE,))
    client.close()
    assert (flex.user, flex.queue) == ("ada", f"root.{FLEX_QUEUE}")
    job.stop()
    job.check_finished()
    for event in job.events("done"):
        assert event["total"] == sum(range(event["steps"])), event
    job.check_steps()


def test_a_job_of_a_ticket_cache_belongs_to_who_has_the_tickets_whatever_the_environment_says(
    secure_lab: YarnLab, tmp_path: Path
) -> None:
    kinit(secure_lab, "ben", tmp_path / "cache")
    shell = (*with_cache(tmp_path / "cache"), "HADOOP_USER_NAME=ada")
    job = submit(secure_lab, tmp_path, "counting.py", "--batches", "5", options=SMALL, shell=shell)
    job.check_finished()
    assert job.report().user == "ben"


def test_without_a_ticket_or_with_an_old_one_the_error_says_what_to_do(
    secure_lab: YarnLab, tmp_path: Path
) -> None:
    said = refusal(secure_lab, *SMALL, shell=with_cache(tmp_path / "none"))
    assert "kinit" in said
    assert "--keytab" in said
    kinit(secure_lab, "ben", tmp_path / "old", "-l", "1s")
    time.sleep(2)
    said = refusal(secure_lab, *SMALL, shell=with_cache(tmp_path / "old"))
    assert "expired" in said
    assert "kinit" in said


def test_a_keytab_of_somebody_else_is_refused(secure_lab: YarnLab) -> None:
    layout = secure_lab.yarn_layout
    options = ("--keytab", str(layout.keytab("ben")), "--principal", layout.principal("ada"))
    assert "ada@" in refusal(secure_lab, *SMALL, *options)


@pytest.mark.thorough
def test_a_keytab_gets_new_tickets_when_the_old_ones_have_expired(secure_lab: YarnLab) -> None:
    layout = secure_lab.yarn_layout
    server = f"rm/{layout.resource_managers[0]}@{layout.realm}"
    command = ["kadmin.local", "-q", f'modprinc -maxlife "4 seconds" {layout.principal("ben")}']
    profile = {"KRB5_KDC_PROFILE": str(layout.kerberos / "kdc.conf")}
    subprocess.run(command, check=True, env={**secure_lab.environment(), **profile}, capture_output=True)
    client = secure_lab.client("ben")  # sets $KRB5_CONFIG
    tickets = Tickets(layout.keytab("ben"), layout.principal("ben"))
    tickets.context(server).step(None)
    client.nodes()
    for _ in range(3):
        time.sleep(2.5)
        tickets.context(server).step(None)
        client.nodes()  # on a connection whose own ticket has expired
    client.close()
    stranger = Tickets(layout.keytab("ada"), layout.principal("ben"))
    with pytest.raises(NoTickets, match="ben@"):
        stranger.context(server)


def test_a_second_user_can_neither_touch_nor_claim_the_application_of_the_first(secure_lab: YarnLab) -> None:
    secret = bytes(range(32))
    ada, ben = secure_lab.client("ada"), secure_lab.client("ben")
    theirs = submission(ada, "default", "ada's")
    theirs.tags.append(f"{tags.KEY}{fingerprint(secret)}")
    ada.submit(theirs)
    for attempt in (
        lambda: ben.kill(theirs.application_id, "mine"),
        lambda: ben.set_priority(theirs.application_id, 9),
        lambda: ben.set_lifetime(theirs.application_id, 1_893_456_000),
    ):
        with pytest.raises(RemoteError, match="ben"):
            attempt()
    time.sleep(0.1)
    copied = submission(ben, "default", "with a tag that lies")
    copied.tags.append(f"{tags.KEY}{fingerprint(secret)}")
    ben.submit(copied)
    flexod = NotarizedSecrets(lambda: secure_lab.client("flexo"), Munge())
    method = "/flexo.v1.JobService/Attach"
    credential = for_flexod(JobSecret(secret), ["127.0.0.1:1"]).credential(method)
    assert flexod.verify(credential, method).uid == uid_of("ada")
    ada.kill(theirs.application_id, "the test ended")
    ben.kill(copied.application_id, "the test ended")
    ada.close()
    ben.close()


def test_a_user_without_rights_in_the_queue_hears_yarns_refusal(secure_lab: YarnLab, tmp_path: Path) -> None:
    """The ResourceManager restarts with other rights: NodeManagers and flexod find it again."""
    prefix = "yarn.scheduler.capacity.root"
    who = {prefix: " ", f"{prefix}.default": "root,ada", f"{prefix}.{FLEX_QUEUE}": "*"}
    settings = {f"{queue}.acl_submit_applications": users for queue, users in who.items()}
    restart(secure_lab, "capacity-scheduler.xml", settings)
    said = refusal(secure_lab, *SMALL, *keytab_of(secure_lab, "ben"))
    assert "ben" in said
    assert "default" in said
    options = (*SMALL, *keytab_of(secure_lab, "ada"))
    submit(secure_lab, tmp_path, "counting.py", "--batches", "5", options=options).check_finished()


@pytest.fixture(params=[Protection.PRIVACY, Protection.INTEGRITY])
def protected_lab(request: pytest.FixtureRequest) -> Iterator[YarnLab]:
    yield from secure(f"sec-{request.param}", request.param, 1, flexod=False)


@pytest.mark.thorough
def test_a_job_runs_where_messages_are_signed_or_encrypted(protected_lab: YarnLab, tmp_path: Path) -> None:
    """The command is longer than a message of 64 KiB that the server takes in one piece."""
    options = (*SMALL, *keytab_of(protected_lab, "ada"), "--export", f"LONG={'x' * 40_000}")
    job = submit(protected_lab, tmp_path, "counting.py", "--batches", "5", options=options)
    job.check_finished()


@pytest.mark.thorough
def test_an_applicationmaster_that_is_killed_goes_on_with_its_satellites(
    secure_lab: YarnLab, tmp_path: Path
) -> None:
    options = (*keytab_of(secure_lab, "ada"), "--gpus", "1", "--memory", "1G")
    job = submit(secure_lab, tmp_path, "counting.py", elastic="2-4", options=options)
    job.wait_for_size(4)
    workers, (before,) = job.workers(), job.masters()
    os.kill(before, 9)
    job.wait_until("another attempt", lambda: job.report().current_attempt_id.attempt_id == 2)
    wait_for("its process", lambda: len(found := job.masters()) == 1 and found != [before])
    went = time.time() + 5
    job.wait_until("batches", lambda: any(event["time"] > went for event in job.events("commit")))
    assert job.workers() == workers
    job.stop()
    job.check_finished()
    job.check_steps()


@pytest.mark.thorough
def test_a_resourcemanager_that_is_killed_costs_a_job_nothing(secure_lab: YarnLab, tmp_path: Path) -> None:
    options = (*keytab_of(secure_lab, "ada"), "--gpus", "1", "--memory", "1G")
    job = submit(secure_lab, tmp_path, "counting.py", elastic="2-4", options=options)
    job.wait_for_size(4)
    restart(secure_lab, "yarn-site.xml", {})
    went = time.time()
    job.wait_until("batches", lambda: any(event["time"] > went for event in job.events("commit")))
    assert job.sizes() == [2, 4]
    job.stop()
    job.check_finished()
    job.check_steps()


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_job_whose_delegation_token_has_ended_makes_room_grows_and_ends_well(
    secure_lab: YarnLab, tmp_path: Path
) -> None:
    """The last test of this lab: its tokens end after 90 s from now on, not after seven days."""
    prefix = "yarn.resourcemanager.delegation.token"
    restart(
        secure_lab,
        "yarn-site.xml",
        {f"{prefix}.max-lifetime": "90000", f"{prefix}.remove-scan-interval": "2000"},
    )
    options = (*keytab_of(secure_lab, "ada"), "--gpus", "1", "--memory", "1G")
    job = submit(secure_lab, tmp_path, "counting.py", elastic="2-8", options=options)
    submitted = time.time()
    job.wait_for_size(8)
    time.sleep(max(0.0, submitted + 95 - time.time()))
    (tmp_path / "ben").mkdir()
    options = (*keytab_of(secure_lab, "ada"), "--workers", "2", "--gpus", "1", "--memory", "1G")
    other = submit(secure_lab, tmp_path / "ben", "counting.py", "--batches", "5", options=options)
    other.check_finished()
    job.wait_until("fewer workers", lambda: min(job.sizes()[job.sizes().index(8) :]) < 8)
    job.wait_until("more workers again", lambda: job.sizes()[-1] == 8)
    assert "only flexod extends" in job.output()
    job.stop()
    assert job.wait().final_status == pb.APP_SUCCEEDED
    job.check_steps()
