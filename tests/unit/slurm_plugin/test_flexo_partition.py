"""flexo-partition, as installed, called by an ordinary user: what it does, and all that it refuses."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

PLUGIN = Path(__file__).resolve().parents[3] / "slurm_plugin"
SCONTROL = """#!/usr/bin/python3 -IS
import json, os, sys
with open("{folder}/calls", "a") as calls:
    calls.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
if sys.argv[-2:] == ["partition", "borrowed"]:
    print("PartitionName=borrowed Nodes={strangers} State=UP")
elif "partition" in sys.argv:
    print("PartitionName=infer AllocNodes=ALL MaxNodes=UNLIMITED MinNodes=0 Nodes={nodes} State=UP")
elif sys.argv[-1] == "t7":
    print("t7")
elif "hostnames" in sys.argv:
    print("i1\\ni2\\ni3\\nALL")
elif {failing}:
    sys.exit("slurm_update error: Access/permission denied")
"""


class Installed:
    """The helper where `make install-partition` puts it, with the test's configuration and scontrol."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, folder / "etc" / "partition.conf"
        self.config.parent.mkdir()
        make = ["make", "-s", "-C", PLUGIN, "install-partition", f"DESTDIR={folder}", "PREFIX="]
        subprocess.run([*map(str, make), f"FLEXO_CONF={self.config}"], check=True, timeout=60)
        self.calls_file = folder / "calls"
        self.calls_file.touch()
        self.calls_file.chmod(0o666)
        self.answer()
        self.configure(f"scontrol = {folder}/scontrol\nslurm_conf = /labs/slurm.conf\n")

    def answer(self, nodes: str = "i[1-3]", strangers: str = "(null)", failing: bool = False) -> None:
        scontrol = self.folder / "scontrol"
        text = SCONTROL.format(folder=self.folder, nodes=nodes, strangers=strangers, failing=failing)
        scontrol.write_text(text)
        scontrol.chmod(0o755)

    def configure(self, text: str) -> None:
        self.config.write_text(text)
        self.config.chmod(0o644)

    def call(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        return subprocess.run(
            [str(self.folder / "sbin" / "flexo-partition"), *arguments],
            env={"PATH": "/usr/bin:/bin", **environment},
            capture_output=True,
            text=True,
            timeout=60,
            cwd="/",
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )

    @property
    def edits(self) -> list[list[str]]:
        lines = [json.loads(line) for line in self.calls_file.read_text().splitlines()]
        return [arguments for arguments, _ in lines if arguments[0] == "update"]


@pytest.fixture
def helper() -> Iterator[Installed]:
    """In a folder that every user may enter, which pytest's own are not."""
    if not shutil.which("make") or not Path("/usr/bin/python3").exists() or os.geteuid() != 0:
        pytest.skip("needs make, Debian's Python, and root, to whom the configuration has to belong")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield Installed(folder)


def test_the_partition_gets_the_nodes_each_once_and_in_order(helper: Installed) -> None:
    assert helper.call("set", "borrowed", "i3,i1,i3").returncode == 0
    assert helper.edits == [["update", "PartitionName=borrowed", "Nodes=i1,i3"]]


def test_no_nodes_empty_it(helper: Installed) -> None:
    assert helper.call("set", "borrowed", "").returncode == 0
    assert helper.edits == [["update", "PartitionName=borrowed", "Nodes="]]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("set",),
        ("set", "borrowed"),
        ("show", "borrowed", "i1"),
        ("set", "borrowed", "i1", "Default=YES"),
        ("set", "train", "i1"),
        ("set", "infer", ""),
        ("set", "borrowed State=DOWN", "i1"),
        ("set", "Borrowed", "i1"),
        ("set", "borrowed", "i9"),
        ("set", "borrowed", "i1,t1"),
        ("set", "borrowed", "ALL"),
        ("set", "borrowed", "all"),
        ("set", "borrowed", "i[1-2]"),
        ("set", "borrowed", "i1,"),
        ("set", "borrowed", ",i1"),
        ("set", "borrowed", "+i1"),
        ("set", "borrowed", "-i1"),
        ("set", "borrowed", "i1 AllowGroups=ALL"),
        ("set", "borrowed", "i1\nPriorityTier=100"),
        ("set", "borrowed", "i1\n"),
        ("set", "borrowed", "$(touch pwned)"),
        ("set", "borrowed", "i1;reboot"),
        ("set", "borrowed", "../i1"),
        ("set", "borrowed", "i1,i\u0661"),
        ("set", "borrowed", "i" * 300),
        ("set", "borrowed", ",".join(f"i{number}" for number in range(20001))),
        ("--help",),
    ],
)
def test_everything_else_is_refused_before_slurm_hears_of_it(
    helper: Installed, arguments: tuple[str, ...]
) -> None:
    done = helper.call(*arguments)
    assert (done.returncode, done.stdout, helper.edits) == (2, "", [])
    assert done.stderr.startswith("flexo-partition: ")
    assert done.stderr.count("\n") == 1


def test_an_inference_partition_without_nodes_lends_none(helper: Installed) -> None:
    helper.answer(nodes="(null)")
    assert helper.call("set", "borrowed", "i1").returncode == 2
    assert helper.edits == []


def test_a_node_that_somebody_else_has_put_there_may_stay(helper: Installed) -> None:
    helper.answer(strangers="t7")
    assert helper.call("set", "borrowed", "i1,t7").returncode == 0
    assert helper.call("set", "borrowed", "i1,t8").returncode == 2
    assert helper.edits == [["update", "PartitionName=borrowed", "Nodes=i1,t7"]]


def test_nothing_of_the_callers_environment_reaches_scontrol(helper: Installed) -> None:
    hostile = {
        "SLURM_CONF": "/tmp/mine.conf",
        "SLURM_CLUSTERS": "other",
        "PATH": "/tmp",
        "PYTHONPATH": "/tmp",
        "PYTHONSTARTUP": "/tmp/x.py",
        "BASH_ENV": "/tmp/x",
        "LC_ALL": "de_DE.UTF-8",
    }
    assert helper.call("set", "borrowed", "i1", **hostile).returncode == 0
    environments = [json.loads(line)[1] for line in helper.calls_file.read_text().splitlines()]
    for environment in environments:
        assert environment.items() >= {"LC_ALL": "C", "SLURM_CONF": "/labs/slurm.conf"}.items()
        assert environment["PATH"] == "/usr/bin:/bin"
        assert not environment.keys() - {"PATH", "LC_ALL", "SLURM_CONF", "LC_CTYPE"}


def test_slurms_refusal_is_told_in_its_words(helper: Installed) -> None:
    helper.answer(failing=True)
    done = helper.call("set", "borrowed", "i1")
    assert done.returncode == 1
    assert done.stderr == ("flexo-partition: scontrol update: slurm_update error: Access/permission denied\n")


def test_slurm_that_does_not_answer_holds_nobody_up(helper: Installed) -> None:
    program = helper.folder / "sbin" / "flexo-partition"
    text = program.read_text()
    assert "TIMEOUT_S = 15\n" in text
    program.write_text(text.replace("TIMEOUT_S = 15\n", "TIMEOUT_S = 1\n"))
    (helper.folder / "scontrol").write_text("#!/bin/sh\nexec sleep 600\n")
    done = helper.call("set", "borrowed", "i1")
    assert done.returncode == 1
    assert "connection timed out" in done.stderr


def test_several_partitions_can_be_lent_into(helper: Installed) -> None:
    helper.configure(f"{helper.config.read_text()}borrowed = borrowed, borrowed-flex\n")
    assert helper.call("set", "borrowed-flex", "i1").returncode == 0
    assert helper.call("set", "borrowed,borrowed-flex", "i1").returncode == 2
    assert helper.edits == [["update", "PartitionName=borrowed-flex", "Nodes=i1"]]


def test_other_partitions_can_be_named_by_root(helper: Installed) -> None:
    text = helper.config.read_text()
    helper.configure(f"# a site of its own\n{text}borrowed = lent # not the default\ninference = serving\n")
    assert helper.call("set", "borrowed", "i1").returncode == 2
    assert helper.call("set", "lent", "i1").returncode == 0
    assert helper.edits == [["update", "PartitionName=lent", "Nodes=i1"]]
    assert '"serving"' in helper.calls_file.read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("partition = borrowed", "the keys are borrowed, inference, scontrol, slurm_conf"),
        ("borrowed", "KEY = VALUE"),
        ("borrowed = infer", "must differ"),
        ("borrowed = a,b c", "'b c' is not the name of a partition"),
        ("borrowed = a,,b", "'' is not the name of a partition"),
        ("borrowed = a,infer", "must differ"),
        ("inference = a,b", "'a,b' is not the name of a partition"),
        ("scontrol = scontrol", "not an absolute path"),
        ("slurm_conf =", "not an absolute path"),
        ("borrowed = b\u00f6rse", "cannot be read"),
    ],
)
def test_a_configuration_that_cannot_be_is_named_and_nothing_happens(
    helper: Installed, text: str, said: str
) -> None:
    helper.configure(text + "\n")
    done = helper.call("set", "borrowed", "i1")
    assert (done.returncode, helper.edits) == (2, [])
    assert str(helper.config) in done.stderr
    assert said in done.stderr


def test_a_configuration_that_others_may_write_is_not_obeyed(helper: Installed) -> None:
    helper.config.chmod(0o664)
    assert helper.call("set", "borrowed", "i1").returncode == 2
    helper.config.chmod(0o644)
    os.chown(helper.config, pwd.getpwnam("nobody").pw_uid, -1)
    done = helper.call("set", "borrowed", "i1")
    assert done.returncode == 2
    assert "must belong to root" in done.stderr
    assert helper.edits == []


def test_a_configuration_in_a_folder_that_others_may_write_is_not_obeyed(helper: Installed) -> None:
    helper.config.parent.chmod(0o777)
    done = helper.call("set", "borrowed", "i1")
    assert (done.returncode, helper.edits) == (2, [])
    assert f"{helper.config.parent} must belong to root" in done.stderr


def test_without_a_configuration_the_defaults_hold(helper: Installed) -> None:
    helper.config.unlink()
    assert helper.call("set", "lent", "i1").returncode == 2  # only `borrowed` may be edited
