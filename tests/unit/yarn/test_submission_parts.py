"""What a submission to YARN is made of: configuration, options, files, the template of all containers."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from says import says

from flexo_cli import yarn_submission
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_protos.resources import Resources
from flexo_yarn import credentials
from flexo_yarn.configuration import BadConfiguration, read_client
from flexo_yarn.credentials import AM_RM_KIND, RM_KIND, Credentials, Token
from flexo_yarn.resource_manager import ResourceManager
from flexo_yarn.site_settings import as_xml
from horovod_elastic import accelerate_launch
from horovod_elastic.launch_commands import Accelerated, Launch
from horovod_elastic.platforms.base import NotInAJob, Refused
from horovod_elastic.platforms.yarn.environment import RESOURCE_MANAGER, USER
from horovod_elastic.platforms.yarn.files import Files, Shipped
from horovod_elastic.platforms.yarn.job_options import JobOptions, parse
from horovod_elastic.platforms.yarn.platform import client_opener
from horovod_elastic.platforms.yarn.template import Template

HOST = {"yarn.resourcemanager.hostname": "rm1"}
SEVERAL = {
    "yarn.resourcemanager.ha.enabled": "true",
    "yarn.resourcemanager.ha.rm-ids": "a, b",
    "yarn.resourcemanager.hostname.a": "a.site",
    "yarn.resourcemanager.hostname.b": "b.site",
    "yarn.resourcemanager.address.b": "${yarn.resourcemanager.hostname.b}:9032",
}


def configured(folder: Path, site: dict[str, str], core: dict[str, str] | None = None) -> Path:
    (folder / "yarn-site.xml").write_text(as_xml(site.items()))
    if core:
        (folder / "core-site.xml").write_text(as_xml(core.items()))
    return folder


def test_addresses_come_from_the_host_unless_they_are_named(tmp_path: Path) -> None:
    found = read_client(configured(tmp_path, HOST))
    assert found.resource_manager == (("rm1", 8032),)
    assert (found.scheduler, found.web) == ((("rm1", 8030),), (("rm1", 8088),))
    assert (found.default_filesystem, found.kerberos, found.gpu_plugin) == ("file:///", False, False)
    named = {
        **HOST,
        "yarn.resourcemanager.address": "${yarn.resourcemanager.hostname}:9032",
        "yarn.resourcemanager.principal": "rm/_HOST@EXAMPLE.COM",
        "yarn.nodemanager.resource-plugins": "yarn.io/fpga, yarn.io/gpu",
    }
    core = {"fs.defaultFS": "hdfs://nn:8020", "hadoop.security.authentication": "kerberos"}
    found = read_client(configured(tmp_path, named, core))
    assert found.resource_manager == (("rm1", 9032),)
    assert (found.default_filesystem, found.kerberos, found.gpu_plugin) == ("hdfs://nn:8020", True, True)


def test_several_resource_managers_have_an_address_each(tmp_path: Path) -> None:
    found = read_client(configured(tmp_path, SEVERAL))
    assert found.resource_manager == (("a.site", 8032), ("b.site", 9032))
    assert found.scheduler == (("a.site", 8030), ("b.site", 8030))
    assert found.web == (("a.site", 8088), ("b.site", 8088))


@pytest.mark.parametrize(
    ("site", "named"),
    [
        ({}, "yarn.resourcemanager.hostname"),
        ({**HOST, "yarn.resourcemanager.address": "rm1"}, "yarn.resourcemanager.address"),
        ({**HOST, "yarn.resourcemanager.ha.enabled": "true"}, "ha.rm-ids"),
        ({**SEVERAL, "yarn.resourcemanager.ha.rm-ids": " , "}, "ha.rm-ids"),
        ({**SEVERAL, "yarn.resourcemanager.ha.rm-ids": "a,b,c"}, r"hostname\.c"),
        ({**SEVERAL, "yarn.resourcemanager.scheduler.address.b": "b"}, r"scheduler\.address\.b"),
        ({**HOST, "hadoop.security.authentication": "kerberos"}, "yarn.resourcemanager.principal"),
    ],
)
def test_a_configuration_that_cannot_be_used_names_file_and_setting(
    tmp_path: Path, site: dict[str, str], named: str
) -> None:
    with pytest.raises(BadConfiguration, match=named) as caught:
        read_client(configured(tmp_path, site))
    assert caught.value.path == tmp_path / "yarn-site.xml"
    with pytest.raises(BadConfiguration, match="cannot be read"):
        read_client(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "mib"), [("512", 512), ("4G", 4096), ("4gb", 4096), ("1t", 1 << 20), ("2048K", 2), ("64M", 64)]
)
def test_memory_is_read_as_people_write_it(text: str, mib: int) -> None:
    assert yarn_submission.memory_in(text) == mib


@pytest.mark.parametrize("text", ["", "0", "-1", "much", "4 GB", "1K", "4P"])
def test_memory_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--memory"):
        yarn_submission.memory_in(text)


@pytest.mark.parametrize("text", ["", "#x", "a#b/c", "a#..", "/"])
def test_a_file_without_a_path_or_with_a_name_that_is_a_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--file"):
        yarn_submission.shipped_in(text)


def test_a_file_is_an_archive_to_be_unpacked_if_it_gets_a_name() -> None:
    assert yarn_submission.shipped_in("/d/data.zip") == Shipped("/d/data.zip", "data.zip")
    assert yarn_submission.shipped_in("/d/data.zip#data") == Shipped("/d/data.zip", "data", archive=True)


def test_the_script_travels_if_it_is_a_file_of_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    command = ["python", "-u", "train.py", "other.py"]
    assert yarn_submission.with_script([], command) == (Shipped("train.py", "train.py"),)
    assert yarn_submission.with_script([Shipped("x", "train.py")], command) == (Shipped("x", "train.py"),)
    assert yarn_submission.with_script([], ["python", "/abs/train.py"]) == ()
    assert yarn_submission.with_script([], ["python", "-m", "train"]) == ()


def test_variables_are_given_or_taken_from_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "x")
    monkeypatch.delenv("AWAY", raising=False)
    assert yarn_submission.variables_in(["A=1=2", "HERE"]) == {"A": "1=2", "HERE": "x"}
    for text in ("AWAY", "1=2", "=2", "a b=1"):
        with pytest.raises(ValueError, match="--export"):
            yarn_submission.variables_in([text])


def launched(
    *command: str, elastic: str = "2-8", variables: dict[str, str] | None = None
) -> tuple[JobOptions, Launch]:
    shape = Resources(0, 1, 512)
    options = yarn_submission.options_of(
        elastic, 2, shape, list(command), "", "", fungible=False, heterogeneous=False
    )
    return yarn_submission.as_launched(options, variables or {})


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "--nproc-per-node=2", "train.py", "--lr", "1"],
        ["/opt/env/bin/torchrun", "--nnodes=1:4", "--rdzv-endpoint=here:1", "train.py", "--lr", "1"],
        ["python", "-m", "torch.distributed.run", "train.py", "--lr", "1"],
    ],
)
def test_torchruns_command_starts_its_script_once_in_each_worker(command: list[str]) -> None:
    """By the Python of the job's environment, whether or not this machine has torchrun."""
    options, launch = launched(*command)
    assert options.command == ("python", "-u", "train.py", "--lr", "1")
    assert (options.minimum, options.maximum, launch.notes) == (2, 8, ())
    assert dict(launch.variables) == {"OMP_NUM_THREADS": "1"}


def test_variables_that_the_user_gives_to_the_job_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not those of the shell that submits."""
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setenv("PYTHON_EXEC", "/of/this/shell")
    assert dict(launched("torchrun", "train.py")[1].variables) == {"OMP_NUM_THREADS": "1"}
    options, launch = launched(
        "torchrun", "train.py", variables={"OMP_NUM_THREADS": "4", "PYTHON_EXEC": "/of/the/job"}
    )
    assert (options.command, launch.variables) == (("/of/the/job", "-u", "train.py"), ())


def test_what_torchrun_was_told_and_has_no_effect_is_said() -> None:
    assert says(launched("torchrun", "--nproc-per-node=4", "train.py")[1].notes[0], "4", "2")
    assert says(launched("torchrun", "--tee=3", "train.py")[1].notes[0], "--tee")


def test_accelerate_is_asked_by_the_python_that_submits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(python: str, arguments: Sequence[str]) -> Accelerated:
        asked.append((python, list(arguments)))
        return Accelerated(("train.py", "-x"), True, (("ACCELERATE_MIXED_PRECISION", "bf16"),), 2, (), "FSDP")

    monkeypatch.setattr(accelerate_launch, "ask", ask)
    options, launch = launched("accelerate", "launch", "--mixed_precision=bf16", "train.py", "-x")
    assert asked == [(sys.executable, ["--mixed_precision=bf16", "train.py", "-x"])]
    assert options.command == ("python", "-u", "train.py", "-x")
    assert (options.minimum, options.maximum, launch.fixed) == (2, 2, "FSDP")


@pytest.mark.parametrize("command", [["mpirun", "-np", "2", "python", "train.py"], ["deepspeed", "train.py"]])
def test_launchers_that_start_processes_themselves_are_refused_by_name(command: list[str]) -> None:
    """Each worker would start workers."""
    with pytest.raises(ValueError, match=command[0]):
        launched(*command)
    assert launched("python", "train.py")[0].command == ("python", "train.py")


def test_the_applicationmaster_reads_the_options_as_the_user_gave_them() -> None:
    options = JobOptions(
        2,
        8,
        Resources(1, 2, 1024),
        ("python", "train.py", "--gpus", "-x"),
        queue="a.b",
        batch="8-64",
        fungible=True,
    )
    assert parse(options.to_arguments()) == options


def variable(launch: pb.ContainerLaunchContext, name: str) -> str:
    return {each.key: each.value for each in launch.environment}[name]


def test_all_containers_of_a_job_have_the_same_files_variables_and_secret() -> None:
    file = pb.NamedLocalResource(key="env", value=pb.LocalResource(size=3))
    held = Credentials({"t": Token(kind=AM_RM_KIND)}, {"s": b"x"})
    made = Template.of("env/bin/python", [file], {"A": "1"}, Credentials(secrets={"s": b"x"}))
    master = made.for_master("m", ["--min", "2"])
    read = Template.read({each.key: each.value for each in master.environment}, held)
    part = read.for_part(["--slots", "1"], {"B": "2"})
    assert list(part.local_resources) == list(master.local_resources) == [file]
    assert (variable(part, "A"), variable(part, "B")) == ("1", "2")
    assert credentials.from_bytes(part.tokens) == Credentials({}, {"s": b"x"})
    assert "env/bin/python" in part.command[0]


def test_a_file_of_this_host_is_fetched_from_its_path_where_nodes_share_it(tmp_path: Path) -> None:
    path = tmp_path / "a file.py"
    path.write_text("pass")
    found = Files("file:///", "x").resource(Shipped(str(path), "train.py"))
    assert (found.key, found.value.size, found.value.type) == ("train.py", 4, pb.FILE)
    assert (found.value.resource.scheme, found.value.resource.file) == ("file", str(path))
    with pytest.raises(Refused, match="no file"):
        Files("file:///", "x").resource(Shipped(str(tmp_path), "d"))
    with pytest.raises(Refused, match="nowhere"):
        Files("file:///", "x").resource(Shipped(str(tmp_path / "nowhere"), "d"))


def test_a_name_with_characters_of_uris_is_a_name(tmp_path: Path) -> None:
    path = tmp_path / "what?.txt"
    path.write_text("data")
    found = Files("file:///", "x").resource(Shipped(str(path), "what?.txt"))
    assert found.value.resource.file == str(path)


@pytest.fixture
def hadoop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command hadoop, which writes down how it was called; the file."""
    calls = tmp_path / "calls"
    program = tmp_path / "bin" / "hadoop"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\n'
        'case "$2" in -stat) echo 1700000000000 4;; -ls) echo hdfs://nn/user/me/.flexo/x/train.py;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return calls


@pytest.mark.processes
def test_where_the_cluster_has_its_own_filesystem_files_are_uploaded(hadoop: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("pass")
    found = Files("hdfs://nn:8020", "x").resource(Shipped(str(path), "data"))
    assert (found.value.timestamp, found.value.size) == (1_700_000_000_000, 4)
    url = found.value.resource
    assert (url.scheme, url.host, url.file) == ("hdfs", "nn", "/user/me/.flexo/x/train.py")
    assert f"fs -put {path} .flexo/x/data/train.py" in hadoop.read_text()
    there = Files("hdfs://nn:8020", "x").resource(Shipped("s3a://bucket/env.tar.gz", "env", archive=True))
    assert (there.value.resource.scheme, there.value.type) == ("s3a", pb.ARCHIVE)


def test_without_hadoops_command_nothing_can_be_uploaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.py"
    path.touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="hadoop"):
        Files("hdfs://nn:8020", "x").resource(Shipped(str(path), "train.py"))


@pytest.mark.parametrize(
    ("default", "source", "named"),
    [("hdfs://nn:8020", "{}/train.py", "hdfs://nn"), ("file:///", "s3a://bucket/env.tar.gz", "s3a")],
)
def test_with_kerberos_files_of_a_clusters_filesystem_are_refused(
    tmp_path: Path, default: str, source: str, named: str
) -> None:
    path = tmp_path / "train.py"
    path.touch()
    with pytest.raises(Refused, match="file:///") as refused:
        Files(default, "x", secure=True).resource(Shipped(source.format(tmp_path), "f"))
    assert named in str(refused.value)
    shared = Files(default, "x", secure=True).resource(Shipped(f"file://{path}", "f"))
    assert shared.value.resource.file == str(path)


def test_a_keytab_needs_its_principal_and_must_be_readable(tmp_path: Path) -> None:
    keytab = tmp_path / "keytab"
    for file, principal, named in (
        (None, "ada@EXAMPLE.COM", "--keytab"),
        (keytab, "", "--principal"),
        (keytab, "ada@EXAMPLE.COM", str(keytab)),
    ):
        with pytest.raises(ValueError, match=re.escape(named)):
            yarn_submission.tickets_of(file, principal)
    keytab.touch()
    assert yarn_submission.tickets_of(keytab, "ada@EXAMPLE.COM").principal == "ada@EXAMPLE.COM"
    assert yarn_submission.tickets_of(None, "").keytab is None


def test_processes_of_a_job_call_the_resourcemanager_by_the_token_that_was_submitted(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    environment = {RESOURCE_MANAGER: "rm1:8032", credentials.VARIABLE: str(path)}
    for content in (None, b"nothing", Credentials().to_bytes()):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(NotInAJob, match="credentials"):
            client_opener(environment)
    token = Token(identifier=b"ada", password=b"p", kind=RM_KIND, service="192.0.2.1:8032")
    path.write_bytes(Credentials({"rm": token}).to_bytes())
    assert token_of(client_opener(environment)()) == token
    assert token_of(client_opener({**environment, USER: "ada"})()) is None


def token_of(client: ResourceManager) -> Token | None:
    (found,) = client._client._clients.values()
    return found.token
