"""Who may scale a job for somebody who looks at flexo-web's pages, and that nobody can pretend to."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
import structlog
from service_doubles import Client, served_admin, slurm_job

from flexo.clusters.base import ClusterState, Privacy
from flexo.control.scale_overrides import BadScale, Busy
from flexo.control.views import ControllerStatus, JobView, UnknownJob, View
from flexo.model.elastic import ElasticJob
from flexo.model.queue import JobKey, Principal
from flexo.model.ranges import Range
from flexo.service.admin_service import AdminService
from flexo.service.budgets import Budgets
from flexo.service.web_accounts import web_accounts
from flexo_protos.resources import Resources
from flexo_protos.v1 import admin_pb2 as pb

WEB, ADA, BOB = 61_020, 61_021, 61_022
ADMINISTRATOR = pwd.getpwnam("games").pw_uid
SCALE = "ScaleViewersJob"


def _job(number: int, uid: int, user: str) -> JobView:
    job = ElasticJob(JobKey(number), user, Range(2, 8), Resources(1, 1), ("n1",), 2, (), 2, True)
    return JobView(job, Principal(str(uid)), True, 9)


class House:
    """The controller's place: 7 is ada's, 8 bob's, and 9 root's."""

    def __init__(self, privacy: Privacy) -> None:
        self.scaled: list[tuple[int, int | None, str]] = []
        self.refusal: Exception | None = None
        jobs = _job(7, ADA, "ada"), _job(8, BOB, "bob"), _job(9, 0, "root")
        queue = tuple(slurm_job(each.job.key.job_id, each.owner, user=each.job.user) for each in jobs)
        self._view = View(ClusterState(5.0, (), (), queue, 0.1, privacy=privacy), jobs)

    def view(self) -> View:
        return self._view

    def jobs(self) -> tuple[JobView, ...]:
        return self._view.jobs

    def status(self) -> ControllerStatus:
        return ControllerStatus(1.0, "lab", "", "Slurm", "lyra", False, 5.0, 2.0, 0.1, (), 2, 8, 6, 0, 2, 2)

    def scale(self, key: JobKey, workers: int | None, by: str = "") -> str:
        if self.refusal:
            raise self.refusal
        self.scaled.append((key.job_id, workers, by))
        return "so be it"


@contextmanager
def served(
    house: House, accounts: frozenset[int] = frozenset({WEB}), **limits: float
) -> Iterator[tuple[Client, AdminService]]:
    budgets = Budgets(**limits)  # type: ignore[arg-type]
    service = AdminService(
        *(house, house, house, ("games",)),  # type: ignore[arg-type]
        budgets=budgets,
        web_accounts=accounts,
    )
    with served_admin(service, budgets) as client:
        yield client, service


@pytest.fixture
def house() -> House:
    return House(Privacy())


@pytest.fixture
def client(house: House) -> Iterator[Client]:
    with served(house) as (made, _):
        yield made


def asked(job_id: int = 7, workers: int = 4, viewer: int = ADA) -> pb.ScaleViewersJobRequest:
    return pb.ScaleViewersJobRequest(job_id=job_id, workers=workers, viewer_uid=viewer)


def test_an_account_of_flexo_web_scales_a_viewers_own_job_and_the_controller_hears_who_did_it(
    client: Client, house: House
) -> None:
    with structlog.testing.capture_logs() as logged:
        assert client.call(SCALE, asked(), WEB).text == "so be it"
    client.call(SCALE, asked(workers=0), WEB)
    assert house.scaled == [(7, 4, "ada on the web page"), (7, None, "ada on the web page")]
    assert {"viewer": ADA, "uid": WEB, "job": "7", "workers": 4}.items() <= logged[-1].items()


@pytest.mark.parametrize("uid", [BOB, ADA, 0, os.getuid(), ADMINISTRATOR])
def test_nobody_else_scales_for_viewers_not_even_administrators(
    client: Client, house: House, uid: int
) -> None:
    code, text = client.refused(SCALE, asked(), uid)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "web_steering" in text
    assert house.scaled == []


def test_where_the_site_names_no_account_nobody_scales_for_viewers(house: House) -> None:
    with served(house, frozenset()) as (client, _):
        assert not client.call("GetStatus", pb.GetStatusRequest(), WEB).web_steering
        assert client.refused(SCALE, asked(), WEB)[0] is grpc.StatusCode.PERMISSION_DENIED
    assert house.scaled == []


def test_the_status_says_to_such_an_account_alone_that_it_may(client: Client) -> None:
    for uid, may in ((WEB, True), (ADA, False), (0, False)):
        assert client.call("GetStatus", pb.GetStatusRequest(), uid).web_steering is may


def test_a_viewers_word_counts_for_that_viewers_jobs_only(client: Client, house: House) -> None:
    code, text = client.refused(SCALE, asked(8), WEB)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "bob may" in text
    assert client.refused(SCALE, asked(5), WEB)[0] is grpc.StatusCode.NOT_FOUND
    assert house.scaled == []


def test_an_administrator_who_looks_at_the_pages_scales_own_jobs_alone(client: Client, house: House) -> None:
    for viewer in (ADMINISTRATOR, os.getuid() or BOB):
        assert client.refused(SCALE, asked(viewer=viewer), WEB)[0] is grpc.StatusCode.PERMISSION_DENIED
    assert house.scaled == []


def test_nobody_is_root_on_the_pages_not_even_for_a_job_of_root(client: Client, house: House) -> None:
    for job_id in (7, 9):
        code, text = client.refused(SCALE, asked(job_id, viewer=0), WEB)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "root" in text
    assert house.scaled == []


def test_an_account_of_flexo_web_may_not_steer_as_itself_nor_by_other_methods(
    client: Client, house: House
) -> None:
    for method, request in (
        ("ScaleJob", pb.ScaleJobRequest(job_id=7, workers=4)),
        ("ScaleOut", pb.ScaleOutRequest(job_id=7, workers=1)),
        ("CheckpointJob", pb.CheckpointJobRequest(job_id=7, path="/tmp/a")),
    ):
        assert client.refused(method, request, WEB)[0] is grpc.StatusCode.PERMISSION_DENIED
    assert house.scaled == []


def test_where_jobs_are_hidden_anothers_job_is_answered_like_none() -> None:
    with served(House(Privacy(jobs=True))) as (client, _):
        code, text = client.refused(SCALE, asked(8), WEB)
        assert code is grpc.StatusCode.NOT_FOUND
        assert text == client.refused(SCALE, asked(998), WEB)[1].replace("998", "8")


def test_a_forger_uses_up_the_forgers_commands_and_not_those_of_the_user_named(house: House) -> None:
    few = {"steering_burst": 3, "steering_per_s": 0.001}
    with served(house, **few) as (client, _):
        for _ in range(3):
            assert client.refused(SCALE, asked(), BOB)[0] is grpc.StatusCode.PERMISSION_DENIED
        assert client.refused(SCALE, asked(), BOB)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        for _ in range(3):
            client.call(SCALE, asked(), WEB)
        code, text = client.refused(SCALE, asked(), WEB)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(ADA) in text
        assert client.refused("ScaleJob", pb.ScaleJobRequest(job_id=7), ADA)[0] is (
            grpc.StatusCode.RESOURCE_EXHAUSTED
        ), "the page is no way around the limit of commands"


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (BadScale("job 7 can have 2-8 workers, not 9"), grpc.StatusCode.INVALID_ARGUMENT),
        (Busy("job 7 is being resized"), grpc.StatusCode.ABORTED),
        (UnknownJob("there is no running elastic job 7"), grpc.StatusCode.NOT_FOUND),
    ],
)
def test_what_the_controller_refuses_reaches_the_page(
    client: Client, house: House, refusal: Exception, code: grpc.StatusCode
) -> None:
    house.refusal = refusal
    assert client.refused(SCALE, asked(workers=9), WEB) == (code, str(refusal))


def test_a_reload_that_takes_the_right_away_counts_at_once(house: House) -> None:
    with served(house) as (client, service):
        client.call(SCALE, asked(), WEB)
        service.web_accounts = web_accounts(())
        assert client.refused(SCALE, asked(), WEB)[0] is grpc.StatusCode.PERMISSION_DENIED
    assert len(house.scaled) == 1


def test_a_name_that_is_no_account_or_is_roots_gives_the_right_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    games = pwd.getpwnam("games")
    toor = pwd.struct_passwd(("toor", "x", 0, 0, "", "/", "/bin/sh"))
    known = {"games": games, "toor": toor}
    monkeypatch.setattr("flexo.service.web_accounts.pwd.getpwnam", lambda name: known[name])
    with structlog.testing.capture_logs() as logged:
        assert web_accounts(("games", "toor", "nobody-of-this-name")) == {games.pw_uid}
    assert [each["account"] for each in logged] == ["toor", "nobody-of-this-name"]
