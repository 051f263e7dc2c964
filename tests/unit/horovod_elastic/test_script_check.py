"""The static check of training scripts: what is named, where, and what is left alone."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from says import says

from horovod_elastic.script_check.examine import check
from horovod_elastic.script_check.findings import Finding, Level, Report, Tier

ROOT = Path(__file__).resolve().parents[3]
LOOP = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
model = DDP(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.zeros(64, 8))
{setup}
loader = DataLoader(data, sampler=DistributedSampler(data, num_replicas=world, rank=rank), batch_size=8)
for epoch in range(3):
    for step, (inputs,) in enumerate(loader):
        loss = model(inputs).mean()
        loss.backward()
        optimizer.step()
        {body}
"""


def checked(folder: Path, text: str, *arguments: str, **modules: str) -> Report:
    for name, content in modules.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(content))
    script = folder / "train.py"
    script.write_text(textwrap.dedent(text))
    return check(script, arguments)


def test_a_framework_that_flexo_does_not_resize_is_named(tmp_path: Path) -> None:
    found = checked(tmp_path, "import tensorflow as tf\nfrom mpi4py import MPI\n")
    assert found.tier is Tier.UNKNOWN
    assert says(found.findings[0].what, "TensorFlow and MPI", "does not resize")
    plain = checked(tmp_path, "import torch\n")
    assert "does not resize" not in plain.findings[0].what


def in_loop(folder: Path, setup: str = "", body: str = "pass") -> Report:
    """A check of a plain training with this code before and in its loop."""
    return checked(folder, LOOP.format(setup=setup, body=body))


def the_one(report: Report) -> Finding:
    assert len(report.findings) == 1, report.findings
    return report.findings[0]


def test_an_ordinary_training_is_elastic(tmp_path: Path) -> None:
    report = in_loop(tmp_path)
    assert (report.tier, report.elastic, report.findings) == (Tier.DDP, True, ())


@pytest.mark.parametrize(
    ("setup", "rule"),
    [
        ("group = dist.new_group([0, 1])", "new-group"),
        ("from torch.distributed import new_group as make\ngroup = make(range(4))", "new-group"),
        ("from torch.distributed import *\ngroup = new_subgroups()", "new-group"),
        ("groups = torch.distributed.new_subgroups(4)", "new-group"),
        (
            "from torch.distributed.device_mesh import init_device_mesh as mesh\nmesh('cuda', (2,))",
            "device-mesh",
        ),
        ("from torch.distributed.fsdp import FullyShardedDataParallel as F\nother = F(model)", "fsdp"),
        ("from torch.distributed.fsdp import fully_shard\nfully_shard(model)", "fsdp"),
        ("from torch.distributed._composable.fsdp import fully_shard\nfully_shard(model)", "fsdp"),
        (
            "import functools\nfrom torch.distributed.fsdp import FSDP\nwrap = functools.partial(FSDP)",
            "fsdp",
        ),
        ("import deepspeed\nengine = deepspeed.initialize(model=model)", "deepspeed"),
        (
            "from torch.distributed.optim import ZeroRedundancyOptimizer\no = ZeroRedundancyOptimizer([], "
            "optimizer_class=torch.optim.Adam)",
            "zero-redundancy",
        ),
        ("model.register_comm_hook({}, lambda state, bucket: None)", "comm-hook-state"),
        ("model.register_comm_hook(state=State(), hook=hook)", "comm-hook-state"),
        ("graph = torch.cuda.CUDAGraph()", "cuda-graphs"),
        ("from torch import cuda\ncuda.make_graphed_callables(model, ())", "cuda-graphs"),
        ("import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)", "spawn"),
        (
            "class Part(torch.utils.data.BatchSampler):\n    def __init__(self, num_replicas): pass",
            "sampler",
        ),
        ("dist.init_process_group('gloo')", "several-groups"),
        ("from torch.distributed import rpc\nrpc.init_rpc('w', rank=rank, world_size=world)", "rpc"),
        ("from datasets import load_dataset\nd = load_dataset('x', streaming=True)", "iterable-dataset"),
        (
            "class Lines(torch.utils.data.IterableDataset):\n    pass\nlines = Lines()",
            "iterable-dataset",
        ),
    ],
)
def test_constructs_that_tie_a_job_to_its_size_are_named(tmp_path: Path, setup: str, rule: str) -> None:
    """In the last line of the setup, or in its first for classes."""
    report = in_loop(tmp_path, setup)
    finding = the_one(report)
    assert (finding.rule, finding.level, report.elastic) == (rule, Level.KEEPS, False)
    assert finding.file == str(tmp_path / "train.py")
    line = LOOP.splitlines().index("{setup}") + 1
    lines = setup.count("\n") + 1
    assert finding.line == (line if "class " in setup and rule == "sampler" else line + lines - 1)


@pytest.mark.parametrize(
    "setup",
    [
        "class Mine(DistributedSampler):\n    pass",
        "class Part(torch.utils.data.Sampler):\n    def __init__(self, num_replicas): pass",
        "from timm.data import Repeat\nsampler = Repeat(data, num_replicas=world, rank=rank)",
    ],
)
def test_a_sampler_of_the_scripts_own_only_may_keep_its_size(tmp_path: Path, setup: str) -> None:
    report = in_loop(tmp_path, setup)
    assert (the_one(report).rule, the_one(report).level, report.elastic) == (
        "own-sampler",
        Level.MAY_KEEP,
        True,
    )


@pytest.mark.parametrize(
    "setup",
    [
        "part = files[rank::world]",
        "part = files[rank * 10 : (rank + 1) * 10]",
        "a, b = int(os.environ['RANK']), int(os.getenv('WORLD_SIZE', 1))\npart = range(a, 99, b)",
        "import itertools\npart = itertools.islice(stream, rank, None, world)",
        "part = data.shard(num_shards=world, index=rank)",
        "import datasets.distributed as d\npart = d.split_dataset_by_node(data, rank, world)",
        "import numpy as np\npart = np.array_split(files, world)[rank]",
        "part = torch.arange(99).chunk(dist.get_world_size())[dist.get_rank()]",
        "part = [each for n, each in enumerate(files) if n % world == rank]",
        "n = int(os.environ['SLURM_NTASKS'])\nid = int(os.environ['SLURM_PROCID'])\npart = files[id::n]",
        "size = world * 2\npart = files[2 * rank :: size]",
    ],
)
def test_samples_that_a_script_deals_out_itself_are_named(tmp_path: Path, setup: str) -> None:
    finding = the_one(in_loop(tmp_path, setup))
    assert finding.rule == "static-shards"
    assert "DistributedSampler" in finding.what


@pytest.mark.parametrize(
    "setup",
    [
        "torch.cuda.set_device(rank % 8)",
        "device = devices[rank]",
        "tail = files[step_size::2]",
        "seed = 17 + rank",
        "batch = 256 // world",
        "model.register_comm_hook(None, hook)",
        "assert not isinstance(model, torch.distributed.fsdp.FullyShardedDataParallel)",
        "def nobody_calls_this():\n    dist.new_group([0])",
        "try:\n    dist.init_process_group('nccl')\nexcept OSError:\n    dist.init_process_group()",
        "graph = torch.cuda.memory_summary()",
        "group = dist.new_group(backend='gloo')",
        "group = dist.new_group(list(range(dist.get_world_size())))",
        "group = dist.new_group(ranks=range(world))",
    ],
)
def test_what_only_looks_like_it_is_left_alone(tmp_path: Path, setup: str) -> None:
    assert in_loop(tmp_path, setup).findings == ()


@pytest.mark.parametrize("condition", ["args.sharded", "args.multiprocessing_distributed", "not plain"])
def test_a_construct_under_a_condition_only_may_keep_the_size(tmp_path: Path, condition: str) -> None:
    report = in_loop(tmp_path, f"if {condition}:\n    group = dist.new_group([0])")
    assert the_one(report).level is Level.MAY_KEEP
    assert report.elastic


@pytest.mark.parametrize(
    "condition",
    ["world > 1", "dist.is_initialized()", "__name__ == '__main__'", "torch.cuda.is_available()", "args.ddp"],
)
def test_a_condition_that_holds_in_every_such_job_is_none(tmp_path: Path, condition: str) -> None:
    assert not in_loop(tmp_path, f"if {condition}:\n    group = dist.new_group([0])").elastic


@pytest.mark.parametrize("condition", ["loss.item() < 0.1", "time.time() > end", "rank == 0 and step > 5"])
def test_a_break_by_a_condition_of_one_worker_is_a_hint(tmp_path: Path, condition: str) -> None:
    report = in_loop(tmp_path, "import time", f"if {condition}: break")
    assert (the_one(report).rule, the_one(report).level) == ("early-break", Level.HINT)
    assert condition in the_one(report).what
    assert report.elastic


READ = [
    "size = dist.get_world_size()",
    'size = int(os.environ["WORLD_SIZE"])',
    'size = int(os.environ.get("WORLD_SIZE", "1"))',
    "me, size = dist.get_rank(), dist.get_world_size()",
]


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("use", ["lr = 0.1 * size", "loss /= size", "if size > 1: dist.all_reduce(loss)"])
def test_a_size_that_is_read_once_and_used_in_the_loop_is_a_hint(tmp_path: Path, read: str, use: str) -> None:
    report = in_loop(tmp_path, read, use)
    finding = the_one(report)
    assert (finding.rule, finding.level) == ("stale-size", Level.HINT)
    assert "size is the number of workers" in finding.what
    assert "get_world_size()" in finding.what
    assert report.elastic


@pytest.mark.parametrize(
    ("read", "use"),
    [
        (READ[0], "pass"),
        ("", "size = dist.get_world_size(); lr = 0.1 * size"),
        (READ[0], "size = dist.get_world_size(); lr = 0.1 * size"),
        (READ[0], "again = DataLoader(data, sampler=DistributedSampler(data, num_replicas=size))"),
        (READ[0], "print(f'{size} workers')"),
        (READ[0] + "\nsize = 4", "lr = 0.1 * size"),
        ("batch = 64 // dist.get_world_size()", "seen = step * batch"),
        ("size = len(data)", "seen = step / size"),
        (READ[0], "for each in (lambda size: size * 2,): each(1)"),
    ],
)
def test_a_size_that_does_no_harm_in_the_loop_is_left_alone(tmp_path: Path, read: str, use: str) -> None:
    assert not in_loop(tmp_path, read, use).findings


def test_a_break_that_all_workers_take_is_none(tmp_path: Path) -> None:
    assert in_loop(tmp_path, "", "if step >= 100: break").findings == ()


# --- scripts that declare their state -------------------------------------------------------------------

STREAM = "class Lines(torch.utils.data.IterableDataset):\n    pass\nlines = Lines()"


def test_the_way_out_by_a_declaration_is_named(tmp_path: Path) -> None:
    for text in (LOOP.format(setup=STREAM, body="pass"), "import torch"):
        finding = the_one(checked(tmp_path, text))
        assert says(finding.what, "flexo.elastic(...)", "docs/howto/declare-state.md")


@pytest.mark.parametrize(
    "setup", [STREAM, "class Part(torch.utils.data.Sampler):\n    def __init__(self, num_replicas): pass"]
)
def test_what_a_script_may_have_declared_only_may_keep_its_size(tmp_path: Path, setup: str) -> None:
    report = in_loop(tmp_path, f"import flexo\n{setup}\nflexo.elastic(lines=None)")
    assert (the_one(report).level, report.elastic) == (Level.MAY_KEEP, True)


def test_a_loop_of_the_scripts_own_is_known_if_it_declares_its_state(tmp_path: Path) -> None:
    for text in ("import flexo\njob = flexo.elastic(a=1)", "from flexo import elastic\njob = elastic(a=1)"):
        report = checked(tmp_path, text)
        assert (report.tier, report.findings) == (Tier.DECLARED, ())


# --- loaders ----------------------------------------------------------------------------------------------

BEGIN = """
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
model = DistributedDataParallel(torch.nn.Linear(8, 2))
"""


@pytest.mark.parametrize(
    ("loop", "line", "level"),
    [
        ("for step in range(9):\n    model(torch.zeros(1, 8)).mean().backward()", 6, Level.HINT),
        ("model(torch.zeros(1, 8)).mean().backward()", 1, Level.HINT),
        (
            "check = DataLoader([])\nfor step in range(9):\n    model(batch()).mean().backward()",
            *(7, Level.MAY_KEEP),
        ),
        ("check = DataLoader([])\nwhile True:\n    model(batch()).mean().backward()", 7, Level.MAY_KEEP),
    ],
)
def test_a_training_loop_without_a_loader_is_named(
    tmp_path: Path, loop: str, line: int, level: Level
) -> None:
    """Such a job is resized after a step, unless another loader hides that."""
    report = checked(tmp_path, BEGIN + loop)
    finding = the_one(report)
    assert (finding.rule, finding.line, finding.level) == ("no-loader", line, level)
    assert report.elastic


@pytest.mark.parametrize(
    "loop",
    [
        "for x in DataLoader([]):\n    for micro in range(4):\n        model(x).mean().backward()",
        "loader = iter(DataLoader([]))\nfor step in range(9):\n    model(next(loader)).mean().backward()",
        "from tqdm import tqdm\nfor x in tqdm(DataLoader([])):\n    model(x).mean().backward()",
    ],
)
def test_a_loop_that_takes_batches_in_another_way_is_left_alone(tmp_path: Path, loop: str) -> None:
    assert checked(tmp_path, BEGIN + loop).findings == ()


# --- files and tiers ------------------------------------------------------------------------------------


def test_modules_beside_the_script_are_read_and_installed_ones_are_not(tmp_path: Path) -> None:
    report = checked(
        tmp_path,
        "import torch\nimport helpers\nfrom parts import groups\n" + LOOP.format(setup="", body="pass"),
        helpers="from parts.groups import make\nmake()\n",
        parts__groups="import torch.distributed as dist\n\n\ndef make():\n    return dist.new_group([0])\n",
        unused="import torch.distributed as dist\ndist.new_group([0])\n",
    )
    names = [Path(each).relative_to(tmp_path).as_posix() for each in report.files]
    assert sorted(names) == ["helpers.py", "parts/groups.py", "train.py"]
    finding = the_one(report)
    assert (finding.file, finding.line) == (str(tmp_path / "parts" / "groups.py"), 5)


def test_a_script_inside_a_package_finds_its_packages_modules(tmp_path: Path) -> None:
    folder = tmp_path / "pkg"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "model.py").write_text("import torch.distributed as dist\ngroup = dist.new_group([0])\n")
    for statement in ("from .model import group", "import pkg.model", "from pkg import model"):
        (folder / "train.py").write_text(f"{statement}\n{LOOP.format(setup='', body='pass')}")
        assert the_one(check(folder / "train.py")).rule == "new-group", statement


@pytest.mark.parametrize(
    ("text", "tier", "elastic"),
    [
        ("from transformers import Trainer\nTrainer(model=None).train()", Tier.TRAINER, True),
        ("from trl import SFTTrainer\nSFTTrainer().train()", Tier.TRAINER, True),
        ("from transformers import Trainer\nclass Mine(Trainer): pass\nMine().train()", Tier.TRAINER, True),
        ("import lightning as L\nL.Trainer().fit(None)", Tier.LIGHTNING, True),
        ("import pytorch_lightning as pl\npl.Trainer().fit(None)", Tier.LIGHTNING, True),
        ("from lightning.pytorch.cli import LightningCLI\nLightningCLI()", Tier.LIGHTNING, True),
        ("from accelerate import Accelerator\na = Accelerator()", Tier.ACCELERATE, True),
        ("import horovod.torch as hvd\nhvd.init()\n@hvd.elastic.run\ndef train(s): pass", Tier.HOROVOD, True),
        ("import horovod.torch as hvd\nhvd.init()", Tier.HOROVOD, False),
        ("import torch\nprint(torch.__version__)", Tier.UNKNOWN, False),
        ("import transformers\ntransformers.AutoModel.from_pretrained('x')", Tier.UNKNOWN, False),
    ],
)
def test_the_tier_of_a_script_is_said(tmp_path: Path, text: str, tier: Tier, elastic: bool) -> None:
    report = checked(tmp_path, text)
    assert (report.tier, report.elastic) == (tier, elastic)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            "import transformers as t\nt.Trainer(args=t.TrainingArguments('x', fsdp='full_shard'))",
            "fsdp",
        ),
        ("import transformers as t\nt.Trainer(args=t.TrainingArguments('x', deepspeed='d'))", "deepspeed"),
        ("import lightning as L\nL.Trainer(strategy='fsdp')", "fsdp"),
        ("import lightning as L\nL.Trainer(strategy='deepspeed_stage_2')", "deepspeed"),
        (
            "import lightning as L\nfrom lightning.pytorch.strategies import FSDPStrategy\n"
            "L.Trainer(strategy=FSDPStrategy())",
            "fsdp",
        ),
        ("import accelerate as a\na.Accelerator(deepspeed_plugin=plugin)", "deepspeed"),
    ],
)
def test_frameworks_that_are_told_to_shard_keep_their_size(tmp_path: Path, text: str, rule: str) -> None:
    assert the_one(checked(tmp_path, text)).rule == rule


def test_frameworks_that_are_told_not_to_shard_are_left_alone(tmp_path: Path) -> None:
    text = "import transformers as t\nt.Trainer(args=t.TrainingArguments('x', fsdp='', deepspeed=None))"
    assert checked(tmp_path, text).elastic


def test_the_scripts_arguments_count(tmp_path: Path) -> None:
    text = "from transformers import Trainer\nTrainer().train()"
    report = checked(tmp_path, text, "--deepspeed=ds.json", "--lr", "1")
    assert says(the_one(report).what, "--deepspeed")
    assert not report.elastic
    assert checked(tmp_path, text, "--lr", "1").elastic


def test_horovod_deals_out_anew_after_a_resize(tmp_path: Path) -> None:
    text = """
        import horovod.torch as hvd
        hvd.init()
        @hvd.elastic.run
        def train(state):
            part = files[hvd.rank() :: hvd.size()]
    """
    assert checked(tmp_path, text).findings == ()


def test_what_is_no_python_is_said_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.py:2"):
        checked(tmp_path, "import torch\nwhat now")


def test_a_module_beside_that_is_no_python_is_left_out(tmp_path: Path) -> None:
    report = checked(tmp_path, "import odd\n" + LOOP.format(setup="", body="pass"), odd="what now")
    assert report.findings == ()


@pytest.mark.parametrize(
    ("script", "tier", "elastic"),
    [
        ("tests/training/scripts/plain_ddp.py", Tier.DDP, True),
        ("tests/training/scripts/counting.py", Tier.HOROVOD, True),
        ("tests/training/scripts/rigid.py", Tier.HOROVOD, False),
        ("tests/training/scripts/fixed_size_torch.py", Tier.DDP, False),
        ("examples/digits/train.py", Tier.HOROVOD, True),
    ],
)
def test_scripts_of_this_repository_are_what_their_trainings_show(
    script: str, tier: Tier, elastic: bool
) -> None:
    report = check(ROOT / script)
    assert (report.tier, report.elastic) == (tier, elastic)


@pytest.mark.processes
def test_the_check_imports_neither_pytorch_nor_packages_of_the_daemon() -> None:
    program = "import sys, horovod_elastic.script_check.examine; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"torch", "typer", "grpc", "flexo"} & set(done.stdout.split())
