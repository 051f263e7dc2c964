"""flexod on a real cluster with real MUNGE: what callers cannot do to it, or to each other."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import grpc
import pytest
from certificates import MadeAuthority

from flexo_lab import Lab
from flexo_protos.credentials import METADATA_KEY, Munge, NotAuthentic
from flexo_protos.v1 import admin_pb2, admin_pb2_grpc, jobs_pb2, jobs_pb2_grpc

ATTACH = "/flexo.v1.JobService/Attach"
STATUS = "/flexo.v1.AdminService/GetStatus"
SCALE = "/flexo.v1.AdminService/ScaleJob"
OWNER, STRANGER = "games", "nobody"

Outcome = tuple[grpc.StatusCode, str]


@pytest.fixture(scope="module")
def flexod(lab: Lab) -> Iterator[Lab]:
    """The lab with its flexod running."""
    lab.start_flexod()
    yield lab
    lab.stop_flexod()


@pytest.fixture(scope="module")
def foreign_munge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a munged that has another key, as on another cluster."""
    home = tmp_path_factory.mktemp("foreign")
    home.parent.chmod(0o755)
    home.chmod(0o755)
    (home / "key").write_bytes(os.urandom(128))
    (home / "key").chmod(0o600)
    named = [f"--{name}-file={home / name}" for name in ("key", "log", "pid", "seed")]
    with subprocess.Popen(
        ["munged", "--force", "--foreground", f"--socket={home / 'socket'}", *named]
    ) as munged:
        _until(lambda: (home / "socket").exists(), "the foreign munged to listen")
        yield home / "socket"
        munged.terminate()


@pytest.fixture
def job(flexod: Lab) -> int:
    """A running job of OWNER that lasts."""
    request = ["--hold", "-n1", "--gpus-per-task=1", "--output=/dev/null", "--wrap=sleep 600"]
    job_id = int(as_user(flexod, OWNER, "sbatch", "--parsable", *request))
    # What the job filter writes; here by hand, so that this test stands without it.
    flexod.run(["scontrol", "update", f"JobId={job_id}", "AdminComment=flexo{workers=1-4}"])
    flexod.run(["scontrol", "release", str(job_id)])
    state = ["squeue", "--noheader", "--format=%T", f"--jobs={job_id}"]
    _until(lambda: flexod.run(state).stdout.strip() == "RUNNING", f"job {job_id} to run")
    return job_id


def as_user(lab: Lab, user: str, *command: str) -> str:
    """What `command` prints. By runuser: a fork of this process, which talks gRPC, could hang or crash."""
    return lab.run(["runuser", "-u", user, "--", *command]).stdout.strip()


def credential(lab: Lab, user: str, method: str, *options: str) -> str:
    """A credential that `user` makes with MUNGE's own command."""
    socket = f"--socket={lab.layout.munge_socket}"
    return as_user(lab, user, "munge", socket, f"--string=flexo {method}", *options)


def hello(job_id: int, **changes: object) -> jobs_pb2.FromLeader:
    """What a leader of the job would say."""
    said: dict[str, object] = {
        "job_id": job_id,
        "workers": jobs_pb2.WorkerRange(min=1, max=4),
        "shape": jobs_pb2.WorkerShape(gpus=1, cpus=1),
        "base_nodes": ["t1"],
    }
    return jobs_pb2.FromLeader(hello=jobs_pb2.Hello(**{**said, **changes}))


class Stream:
    """A leader's stream that stays open until told otherwise."""

    def __init__(self, lab: Lab, made: str | None, messages: Iterable[jobs_pb2.FromLeader]) -> None:
        self._channel = grpc.insecure_channel(lab.daemon_address)
        self._ended = False
        metadata = ((METADATA_KEY, made),) if made else ()
        stub = jobs_pb2_grpc.JobServiceStub(self._channel)
        self.answers = stub.Attach(self._say(messages), metadata=metadata, timeout=120)

    def _say(self, messages: Iterable[jobs_pb2.FromLeader]) -> Iterator[jobs_pb2.FromLeader]:
        yield from messages
        while not self._ended:
            time.sleep(0.05)

    def outcome(self) -> Outcome:
        """How it ends, whatever comes before."""
        try:
            for _ in self.answers:
                pass
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
        return self.answers.code(), ""

    def is_welcome(self) -> bool:
        """Whether flexod takes this leader."""
        return next(self.answers).WhichOneof("body") == "welcome"

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self.answers.cancel()
        self._channel.close()


def attach(lab: Lab, made: str | None, *messages: jobs_pb2.FromLeader) -> Outcome:
    """How a stream with these messages ends."""
    with Stream(lab, made, messages) as stream:
        return stream.outcome()


def ask_status(lab: Lab, made: str | None) -> Outcome:
    """What comes of asking for flexod's status."""
    with grpc.insecure_channel(lab.daemon_address) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        metadata = ((METADATA_KEY, made),) if made else ()
        try:
            stub.GetStatus(admin_pb2.GetStatusRequest(), metadata=metadata, timeout=60)
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def test_the_owners_leader_is_welcome(flexod: Lab, job: int) -> None:
    with Stream(flexod, credential(flexod, OWNER, ATTACH), [hello(job)]) as stream:
        assert stream.is_welcome()


def test_a_credential_is_taken_once(flexod: Lab) -> None:
    made = credential(flexod, STRANGER, STATUS)
    assert ask_status(flexod, made)[0] is grpc.StatusCode.OK
    code, text = ask_status(flexod, made)
    assert code is grpc.StatusCode.UNAUTHENTICATED, text
    assert "Replayed" in text


def test_a_credential_that_has_expired_is_refused(flexod: Lab) -> None:
    made = credential(flexod, STRANGER, STATUS, "--ttl=1")
    time.sleep(2.5)
    code, text = ask_status(flexod, made)
    assert code is grpc.StatusCode.UNAUTHENTICATED, text
    assert "Expired" in text


def test_a_credential_for_reading_does_not_open_a_leaders_stream(flexod: Lab, job: int) -> None:
    code, text = attach(flexod, credential(flexod, OWNER, STATUS), hello(job))
    assert code is grpc.StatusCode.UNAUTHENTICATED, text
    assert ATTACH in text


def test_a_credential_that_was_made_for_another_program_is_refused(flexod: Lab) -> None:
    made = as_user(flexod, OWNER, "munge", f"--socket={flexod.layout.munge_socket}", "--string=ssh")
    code, text = ask_status(flexod, made)
    assert code is grpc.StatusCode.UNAUTHENTICATED, text


def test_a_credential_of_another_cluster_is_refused(flexod: Lab, foreign_munge: Path) -> None:
    code, text = ask_status(flexod, Munge(str(foreign_munge)).credential(STATUS))
    assert code is grpc.StatusCode.UNAUTHENTICATED, text
    assert "Invalid credential" in text


@pytest.mark.parametrize("made", [None, "nonsense", "MUNGE:AAAA:"])
def test_no_credential_and_nonsense_are_refused(flexod: Lab, made: str | None) -> None:
    assert ask_status(flexod, made)[0] is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("user", [STRANGER, "root", "slurm"])
def test_nobody_leads_another_users_job_neither_root_nor_flexods_account(
    flexod: Lab, job: int, user: str
) -> None:
    code, text = attach(flexod, credential(flexod, user, ATTACH), hello(job))
    assert code is grpc.StatusCode.PERMISSION_DENIED, text
    assert f"job {job}" in text


def test_a_job_that_is_not_there_and_an_earlier_run_of_one_that_is_are_refused(flexod: Lab, job: int) -> None:
    code, text = attach(flexod, credential(flexod, OWNER, ATTACH), hello(job + 1000))
    assert code is grpc.StatusCode.NOT_FOUND, text
    code, text = attach(flexod, credential(flexod, OWNER, ATTACH), hello(job, restart_count=3))
    assert code is grpc.StatusCode.FAILED_PRECONDITION, text


def test_a_message_of_more_than_a_mebibyte_is_refused(flexod: Lab, job: int) -> None:
    big = hello(job, base_nodes=["n" * 1024] * 1100)
    code, text = attach(flexod, credential(flexod, OWNER, ATTACH), big)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, text


def test_a_leader_that_floods_is_cut_off_and_flexod_still_answers(flexod: Lab, job: int) -> None:
    report = jobs_pb2.FromLeader(report=jobs_pb2.Report(workers=1))
    before = _cpu_seconds(flexod)
    code, text = attach(flexod, credential(flexod, OWNER, ATTACH), hello(job), *[report] * 20_000)
    # gRPC's client says INTERNAL when one of its own writes meets the closed stream first.
    assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL), text
    assert _cpu_seconds(flexod) - before < 2
    assert ask_status(flexod, credential(flexod, STRANGER, STATUS))[0] is grpc.StatusCode.OK


def test_satellites_on_nodes_that_the_cluster_has_not_are_refused(flexod: Lab, job: int) -> None:
    satellite = jobs_pb2.Satellite(slurm_job_id=1, grant_id="g", node="mars", workers=1, state=1)
    code, text = attach(
        flexod,
        credential(flexod, OWNER, ATTACH),
        hello(job),
        jobs_pb2.FromLeader(report=jobs_pb2.Report(satellites=[satellite])),
    )
    assert code is grpc.StatusCode.INVALID_ARGUMENT, text
    assert "mars" in text


def test_a_second_leader_of_a_job_ends_the_first_ones_stream(flexod: Lab, job: int) -> None:
    with Stream(flexod, credential(flexod, OWNER, ATTACH), [hello(job)]) as first:
        assert first.is_welcome()
        with Stream(flexod, credential(flexod, OWNER, ATTACH), [hello(job)]) as second:
            assert second.is_welcome()
            code, text = first.outcome()
        assert code is grpc.StatusCode.ABORTED, text
        assert "another leader" in text


def test_a_stranger_scales_nobodys_job_the_owner_and_root_do(flexod: Lab, job: int) -> None:
    with Stream(flexod, credential(flexod, OWNER, ATTACH), [hello(job)]) as stream:
        assert stream.is_welcome()
        _until(
            lambda: _scale(flexod, job, OWNER)[0] is not grpc.StatusCode.NOT_FOUND, "flexod to know the job"
        )
        code, text = _scale(flexod, job, STRANGER)
        assert code is grpc.StatusCode.PERMISSION_DENIED, text
        assert OWNER in text
        assert _scale(flexod, job, OWNER)[0] is grpc.StatusCode.OK
        assert _scale(flexod, job, "root")[0] is grpc.StatusCode.OK


def test_hostile_names_of_a_job_are_text_to_flexod_and_to_who_reads_of_it(
    flexod: Lab, job: int, tmp_path: Path
) -> None:
    hostile = "a'b\"$(touch pwned);`id`\n\x1b[2J|77\t\\u0000\u202e" + "x" * 300
    flexod.run(
        ["scontrol", "update", f"JobId={job}", f"JobName={hostile}", f"Comment=flexo-satellite {hostile}"]
    )
    with Stream(flexod, credential(flexod, OWNER, ATTACH), [hello(job)]) as stream:
        assert stream.is_welcome()
        _until(lambda: str(job) in as_user(flexod, OWNER, "flexo", "jobs"), "flexod to know the job")
        said = "".join(as_user(flexod, OWNER, "flexo", *words) for words in (["why", str(job)], ["status"]))
    assert not [character for character in said if not character.isprintable() and character != "\n"]
    assert (
        admin_pb2_grpc.AdminServiceStub(grpc.insecure_channel(flexod.daemon_address))
        .GetStatus(
            admin_pb2.GetStatusRequest(),
            metadata=((METADATA_KEY, credential(flexod, STRANGER, STATUS)),),
            timeout=60,
        )
        .trouble
        == ""
    )
    assert not list(flexod.scratch.glob("pwned"))


@pytest.fixture
def over_tls(flexod: Lab, tmp_path: Path) -> Iterator[Lab]:
    """The same, with the three lines in its configuration."""
    folder = flexod.directory / "tls"
    folder.mkdir()
    authority = MadeAuthority(folder)
    pair = authority.sign("flexod")
    (process,) = flexod.flexod_processes()
    os.chown(pair.key, process.uids().effective, -1)
    toml = flexod.layout.flexo_toml
    before = toml.read_text()
    names = (("certificate", pair.certificate), ("key", pair.key), ("ca", authority.file))
    toml.write_text(before + "\n[tls]\n" + "".join(f'{name} = "{path}"\n' for name, path in names))
    flexod.restart_flexod()
    yield flexod
    toml.write_text(before)
    flexod.restart_flexod()


def test_over_tls_people_and_jobs_reach_flexod_and_nobody_does_in_the_clear(over_tls: Lab) -> None:
    assert "elastic jobs" in as_user(over_tls, OWNER, "flexo", "status").lower()
    code, _ = ask_status(over_tls, credential(over_tls, STRANGER, STATUS))
    assert code is grpc.StatusCode.UNAVAILABLE
    refused = ["env", "FLEXO_TLS_CA=", "flexo", "status"]
    words = over_tls.run(["runuser", "-u", OWNER, "--", *refused], check=False).stderr
    assert "it speaks TLS" in words
    request = ["-n1", "--gpus-per-task=1", "--elastic=1-2", "--output=%j.out", "--wrap=flexo run sleep 5"]
    job_id = over_tls.run(["sbatch", "--parsable", *request], user=OWNER).stdout.strip()
    output = over_tls.scratch / f"{job_id}.out"
    _until(lambda: output.exists() and "attached to flexod" in output.read_text(), "its leader to attach")


def test_flexod_ends_at_sigterm_and_tells_its_leaders_that_grants_stand(flexod: Lab, job: int) -> None:
    with Stream(flexod, credential(flexod, OWNER, ATTACH), [hello(job)]) as stream:
        assert stream.is_welcome()
        (process,) = flexod.flexod_processes()
        process.terminate()
        code, text = stream.outcome()
        assert code is grpc.StatusCode.UNAVAILABLE, text
        assert "grants stand" in text
        process.wait(timeout=60)
    flexod.start_flexod()


def test_a_credential_is_bound_to_its_method_before_any_server_sees_it(lab: Lab) -> None:
    munge = Munge(str(lab.layout.munge_socket))
    assert munge.verify(munge.credential(STATUS), STATUS).uid == os.getuid()
    with pytest.raises(NotAuthentic, match="was not made for"):
        munge.verify(munge.credential(STATUS), SCALE)


def test_without_a_munged_the_socket_that_was_tried_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotAuthentic, match=str(tmp_path / "none")):
        Munge(str(tmp_path / "none")).credential(STATUS)


def _scale(lab: Lab, job_id: int, user: str) -> Outcome:
    with grpc.insecure_channel(lab.daemon_address) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        request = admin_pb2.ScaleJobRequest(job_id=job_id, workers=2)
        try:
            stub.ScaleJob(request, metadata=((METADATA_KEY, credential(lab, user, SCALE)),), timeout=60)
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def _cpu_seconds(lab: Lab) -> float:
    (process,) = lab.flexod_processes()
    spent = process.cpu_times()
    return spent.user + spent.system


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, f"waited 90 s for {what}"
        time.sleep(0.1)
