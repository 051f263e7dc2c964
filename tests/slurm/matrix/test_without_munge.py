"""A cluster without MUNGE: Slurm's own sack (auth/slurm) proves who calls, in every part of flexo."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterator

import grpc
import pytest
from conftest import LabFactory, cancel_all_jobs

from flexo_lab import Lab
from flexo_lab.errors import LabUnavailable
from flexo_lab.processes import daemons_of
from flexo_lab.requirements import installed_release
from flexo_lab.sack import SINCE
from flexo_protos.credentials import METADATA_KEY
from flexo_protos.v1 import admin_pb2, admin_pb2_grpc
from matrix.stand_in import USER, StandIn, field, state, submit, wait

STRANGER = "news"
STATUS = "/flexo.v1.AdminService/GetStatus"
SCALE = "/flexo.v1.AdminService/ScaleJob"
_MAKE = "import sys; from flexo_protos.sack import Sack; print(Sack().credential(sys.argv[1]))"
pytestmark = pytest.mark.timeout(600)
IS_OLD = installed_release() < SINCE


@pytest.fixture(scope="module")
def lab_without_munge(make_lab: LabFactory) -> Iterator[Lab]:
    if IS_OLD:
        pytest.skip("this Slurm has no such sack")
    lab = make_lab(nodes=2, gpus_per_node=2, infer_nodes=0, auth_slurm=True)
    yield lab
    lab.down()


@pytest.fixture
def quiet_lab(lab_without_munge: Lab) -> Iterator[Lab]:
    """That lab without jobs."""
    yield lab_without_munge
    cancel_all_jobs(lab_without_munge)


def credential(lab: Lab, user: str, method: str) -> str:
    """A credential that a process of `user` has from the sack."""
    return lab.run([sys.executable, "-c", _MAKE, method], user=user).stdout.strip()


def ask_status(lab: Lab, made: str) -> tuple[grpc.StatusCode, str]:
    """What comes of asking for flexod's status with this credential."""
    with grpc.insecure_channel(lab.daemon_address) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        try:
            stub.GetStatus(admin_pb2.GetStatusRequest(), metadata=((METADATA_KEY, made),), timeout=60)
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def decoded(part: str) -> dict[str, object]:
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def encoded(said: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(said).encode()).rstrip(b"=").decode()


@pytest.mark.skipif(not IS_OLD, reason="this Slurm has a sack")
def test_a_slurm_that_is_too_old_is_named(make_lab: LabFactory) -> None:
    with pytest.raises(LabUnavailable, match=str(SINCE)):
        make_lab(nodes=1, infer_nodes=0, auth_slurm=True)


def test_no_munged_runs_and_nobody_has_a_credential_of_it(lab_without_munge: Lab) -> None:
    assert "munged" not in {daemon.name for daemon in daemons_of(lab_without_munge.directory)}
    assert lab_without_munge.run(["munge", "-n"], check=False).returncode != 0
    config = lab_without_munge.run(["scontrol", "show", "config"]).stdout
    assert re.search(r"^AuthType += auth/slurm$", config, re.MULTILINE)


def test_an_elastic_job_grows_its_owner_scales_it_and_it_gives_a_node_back(quiet_lab: Lab) -> None:
    job = StandIn.submitted(quiet_lab, "1-4")
    job.wait_for_workers(4)
    refused = quiet_lab.run(["flexo", "scale", str(job.job_id), "2"], user=STRANGER, check=False)
    assert (refused.returncode != 0, "may not steer" in refused.stderr) == (True, True)
    quiet_lab.run(["flexo", "scale", str(job.job_id), "3"], user=USER)
    job.wait_for_workers(3)
    quiet_lab.run(["flexo", "scale", str(job.job_id), "auto"], user=USER)
    job.wait_for_workers(4)
    other = next(node for node in ("t1", "t2") if node != field(quiet_lab, job.job_id, "NodeList"))
    ordinary = submit(quiet_lab, f"--nodelist={other}", "--gres=gpu:2")
    wait(lambda: state(quiet_lab, ordinary) == "RUNNING", "the ordinary job has its node")
    job.wait_for_workers(2)
    job.finish()


def test_a_token_opens_one_call_of_one_method_once(lab_without_munge: Lab) -> None:
    made = credential(lab_without_munge, USER, STATUS)
    assert ask_status(lab_without_munge, made) == (grpc.StatusCode.OK, "")
    code, said = ask_status(lab_without_munge, made)
    assert (code, "used before" in said) == (grpc.StatusCode.UNAUTHENTICATED, True)
    code, said = ask_status(lab_without_munge, credential(lab_without_munge, USER, SCALE))
    assert (code, STATUS in said) == (grpc.StatusCode.UNAUTHENTICATED, True)


def test_slurms_own_key_decides_and_no_algorithm_but_hs256(lab_without_munge: Lab) -> None:
    header, claims, signature = credential(lab_without_munge, USER, STATUS).split(".")
    assert (decoded(header)["alg"], decoded(claims)["context"]) == ("HS256", "sack")
    root = encoded({**decoded(claims), "uid": 0})
    without = encoded({**decoded(header), "alg": "none"})
    forged = ((header, root, signature), (without, root, signature), (header, claims, "AAAA"))
    for parts in forged:
        assert ask_status(lab_without_munge, ".".join(parts))[0] is grpc.StatusCode.UNAUTHENTICATED
    assert ask_status(lab_without_munge, f"{header}.{claims}.{signature}")[0] is grpc.StatusCode.OK


def test_users_cannot_read_the_key(lab_without_munge: Lab) -> None:
    key = str(lab_without_munge.layout.slurm_key)
    assert lab_without_munge.run(["cat", key], user=USER, check=False).returncode != 0


def test_the_doctor_finds_the_sack_in_order(lab_without_munge: Lab) -> None:
    said = lab_without_munge.run(["flexo", "doctor", "--json"], check=False).stdout
    found = {finding["check"]: finding["level"] for finding in json.loads(said)["findings"]}
    assert (found["sack.round_trip"], found["slurm.auth"]) == ("ok", "ok")
    assert "munge.round_trip" not in found
