"""Whose job a leader leads, by the secret that it shows: the ResourceManager says so."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from flexo.clusters.yarn import owners
from flexo.clusters.yarn.owners import REMEMBERED_S, NotarizedSecrets
from flexo_protos.credentials import Caller, NotAuthentic
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_protos.job_secret import JobSecret, fingerprint, for_flexod
from flexo_yarn.ipc.errors import Unreachable

SECRET, OTHER = bytes(range(32)), bytes(32)
METHOD = "/flexo.v1.JobService/Attach"


def shown(secret: bytes) -> str:
    return for_flexod(JobSecret(secret), ["127.0.0.1:1"]).credential(METHOD)


class Others:
    """What verifies commands."""

    def credential(self, method: str) -> str:
        return "munge"

    def verify(self, credential: str, method: str) -> Caller:
        if credential != "munge":
            raise NotAuthentic("no")
        return Caller(17, 17)


class Manager:
    """A ResourceManager that lists applications by their tags."""

    def __init__(self) -> None:
        self.applications_of: dict[str, list[pb.ApplicationReport]] = {}
        self.asked = 0
        self.away = False

    def submit(self, user: str, secret: bytes, at: int) -> None:
        tag = f"flexo-key:{fingerprint(secret)}"
        self.applications_of.setdefault(tag, []).append(pb.ApplicationReport(user=user, start_time=at))

    def applications(
        self, states: Collection[int] = (), tags: Collection[str] = ()
    ) -> list[pb.ApplicationReport]:
        self.asked += 1
        if self.away:
            raise Unreachable("away")
        return [report for tag in tags for report in self.applications_of.get(tag, [])]

    def close(self) -> None: ...


@pytest.fixture
def manager() -> Manager:
    return Manager()


@pytest.fixture
def secrets(manager: Manager) -> NotarizedSecrets:
    return NotarizedSecrets(lambda: manager, Others())  # type: ignore[arg-type, return-value]


def test_who_shows_a_jobs_secret_is_the_user_who_submitted_it(
    manager: Manager, secrets: NotarizedSecrets
) -> None:
    manager.submit("daemon", SECRET, 1)
    assert secrets.verify(shown(SECRET), METHOD).uid == owners.uid_of("daemon")
    with pytest.raises(NotAuthentic):
        secrets.verify(shown(OTHER), METHOD)


def test_who_copies_the_tag_of_another_users_job_gains_nothing(
    manager: Manager, secrets: NotarizedSecrets
) -> None:
    manager.submit("daemon", SECRET, 100)
    manager.submit("games", SECRET, 200)
    assert secrets.verify(shown(SECRET), METHOD).uid == owners.uid_of("daemon")


def test_commands_prove_themselves_as_elsewhere(secrets: NotarizedSecrets) -> None:
    assert secrets.verify(secrets.credential("x"), "x").uid == 17
    with pytest.raises(NotAuthentic):
        secrets.verify("anything else", "x")


def test_an_answer_is_remembered_for_a_while_and_longer_while_nobody_answers(
    manager: Manager, secrets: NotarizedSecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(owners.time, "monotonic", lambda: now)
    manager.submit("daemon", SECRET, 1)
    for _ in range(3):
        secrets.verify(shown(SECRET), METHOD)
    assert manager.asked == 1
    now += REMEMBERED_S + 1
    manager.away = True
    secrets.verify(shown(SECRET), METHOD)
    with pytest.raises(NotAuthentic, match="ResourceManager"):
        secrets.verify(shown(OTHER), METHOD)
    manager.away = False
    manager.applications_of.clear()
    with pytest.raises(NotAuthentic):
        secrets.verify(shown(SECRET), METHOD)
