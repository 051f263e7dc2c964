"""Makes Horovod's two wheels: python packages/horovod_wheels.py python-files|native FOLDER.

`python-files` compiles nothing: the torch core needs Horovod's Python files only. `native` compiles Horovod's
library for the PyTorch of this Python, for CPUs only, whatever CUDA there is on the machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
"""Hash of the source distribution."""
LABEL = "python.files"
"""Suffix of the version of the wheel without a library. It distinguishes the two wheels."""
_HIDDEN = ("HOROVOD_", "CUDA", "CUDNN", "NVCC", "NCCL", "ROCM", "HIP", "TORCH_CUDA", "PYTHON")
"""Prefixes of environment variables that would change what is built."""
_COMPILER_GIB = 2
"""Memory for each compiler process, in GiB."""
_CXX = """\
#!/bin/sh
# Horovod's CMake appends -std=c++14, and PyTorch's headers need 17
exec g++ "$@" -std=c++17 -g0
"""
_CMAKE = """\
#!/bin/sh
# Horovod's CMake looks for nvcc and for a CUDA toolkit by itself, and stops if either is incomplete
case $1 in
-*) exec cmake "$@" ;;
*) exec cmake -DCMAKE_CUDA_COMPILER=NOTFOUND -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=TRUE "$@" ;;
esac
"""
_SITECUSTOMIZE = """\
# Horovod builds for CUDA or ROCm if PyTorch was and a toolkit is found: say that PyTorch was not.
import importlib.machinery
import sys


class _CpuOnly(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target) if name == "torch.version" else None
        if spec is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                module.cuda = module.hip = None

            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _CpuOnly)
"""


def main(arguments: list[str]) -> None:
    """Entry point."""
    kinds = {"python-files": make_python_files, "native": make_native}
    if len(arguments) != 2 or arguments[0] not in kinds:
        sys.exit(f"usage: horovod_wheels.py {'|'.join(kinds)} FOLDER")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        print(kinds[arguments[0]](source(work), Path(arguments[1]), work))


def source(folder: Path) -> Path:
    """The source distribution, downloaded into `folder`; pip compares its hash."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-binary=horovod", "--require-hashes"]
    _pip("download", *options, "--dest", str(folder), "--requirement", str(requirements))
    return folder / f"horovod-{VERSION}.tar.gz"


def make_python_files(sdist: Path, folder: Path, work: Path) -> Path:
    """Build the wheel without a library, with Horovod's own switch. Returns its path."""
    switches = {"HOROVOD_SKIP_COMPILE": "1", "HOROVOD_LOCAL_VERSION": LABEL}
    return _build(sdist, folder, work, {**_without(os.environ), **switches})


def make_native(sdist: Path, folder: Path, work: Path) -> Path:
    """Build the wheel with the native library. Returns its path."""
    return _build(sdist, folder, work, build_environment(os.environ, work))


def _build(sdist: Path, folder: Path, work: Path, environment: Mapping[str, str]) -> Path:
    options = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "-w", str(work / "wheel")]
    _pip("wheel", *options, str(sdist), environment=environment)
    (made,) = (work / "wheel").glob("horovod-*.whl")
    folder.mkdir(parents=True, exist_ok=True)
    arriving = folder / f".{made.name}"  # renamed when complete: no reader sees half a wheel
    arriving.write_bytes(made.read_bytes())
    return arriving.rename(folder / made.name)


def build_environment(environment: Mapping[str, str], work: Path) -> dict[str, str]:
    """`environment` for a build in `work`, without CUDA and without variables that change what is built."""
    (work / "python").mkdir()
    (work / "python" / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    for name, text in (("c++", _CXX), ("cmake", _CMAKE)):
        (work / name).write_text(text)
        (work / name).chmod(0o755)
    return {
        **_without(environment),
        "CXX": str(work / "c++"),
        "HOROVOD_CMAKE": str(work / "cmake"),
        "HOROVOD_CPU_OPERATIONS": "GLOO",
        "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_PYTORCH": "1",
        "MAKEFLAGS": f"-j{_compilers()}",
        "PYTHONPATH": str(work / "python"),
        "TMPDIR": str(work),
    }


def _without(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(_HIDDEN)}


def _compilers() -> int:
    """Number of compilers that may run at a time."""
    (kib,) = re.findall(r"^MemAvailable: *([0-9]+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return max(1, min(len(os.sched_getaffinity(0)), int(kib) // 2**20 // _COMPILER_GIB))


def _pip(*arguments: str, environment: Mapping[str, str] | None = None) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, env=environment)


if __name__ == "__main__":
    main(sys.argv[1:])
