"""What `pip install flexo` brings: an editable install hides what a wheel lacks."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_holds_every_module_and_what_workers_and_administrators_need(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "daemon", "horovod_elastic", "protos", "setup.py", "pyproject.toml", "README.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    copy = tmp_path / "source"
    for name in listed:
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        [sys.executable, *build, str(tmp_path), str(copy)], check=True, env={**os.environ, "PATH": path}
    )
    (wheel,) = tmp_path.glob("flexo-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    for top, folder in (("flexo", "daemon/"), ("horovod_elastic", ""), ("flexo_protos", "protos/")):
        modules = [name.removeprefix(folder) for name in listed if name.startswith(f"{folder}{top}/")]
        wanted = {name for name in modules if name.endswith((".py", ".json", ".yml"))}
        assert wanted - held == set()
    protos = [Path(name) for name in listed if name.endswith(".proto")]
    made = {f"flexo_protos/v1/{proto.stem}_pb2.py" for proto in protos}
    with_services = [proto for proto in protos if "\nservice " in (ROOT / proto).read_text()]
    made |= {f"flexo_protos/v1/{proto.stem}_pb2_grpc.py" for proto in with_services}
    assert {"flexo_protos/v1/collectives_pb2.py", "flexo_protos/v1/jobs_pb2_grpc.py"} < made
    assert made - held == set()
    assert "flexo/flexo.toml.example" in held
