"""Horovod's wheels: one that compiles nothing, and one that no CUDA on the machine gets into."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import horovod_wheels
import pytest

NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.99'\nexit 0\n"
ASKS = (  # as Horovod's FindPytorch.cmake does
    "import torch; from torch.utils.cpp_extension import CUDA_HOME, ROCM_HOME;"
    "print((torch.version.cuda is not None) and (CUDA_HOME is not None),"
    "      (torch.version.hip is not None) and (ROCM_HOME is not None))"
)
LOOKS_FOR_CUDA = """\
cmake_minimum_required(VERSION 3.13)
project(horovod CXX)
include(CheckLanguage)
if(DEFINED ENV{HOROVOD_CUDA_HOME})
  set(CMAKE_CUDA_COMPILER "$ENV{HOROVOD_CUDA_HOME}/bin/nvcc")
endif()
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  find_package(CUDAToolkit)
  if(CUDAToolkit_BIN_DIR)
    unset(CMAKE_CUDA_COMPILER CACHE)
    set(CMAKE_CUDA_COMPILER "${CUDAToolkit_BIN_DIR}/nvcc")
    check_language(CUDA)
  endif()
endif()
if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
endif()
"""
"""How Horovod's CMakeLists.txt looks for a compiler."""
SETUP = """\
import os
from setuptools import setup
assert os.environ.get("HOROVOD_SKIP_COMPILE") == "1", "the library would be compiled"
assert "HOROVOD_WITH_TENSORFLOW" not in os.environ
setup(name="horovod", version="0.28.1+" + os.environ["HOROVOD_LOCAL_VERSION"], packages=["horovod"])
"""


@pytest.fixture
def with_cuda(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with a toolkit that has nvcc and nothing else."""
    toolkit = tmp_path / "cuda"
    (toolkit / "bin").mkdir(parents=True)
    (toolkit / "bin" / "nvcc").write_text(NVCC)
    (toolkit / "bin" / "nvcc").chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{toolkit / 'bin'}{os.pathsep}{os.environ['PATH']}",
        **dict.fromkeys(("CUDA_HOME", "CUDA_PATH", "CUDA_TOOLKIT_ROOT_DIR"), str(toolkit)),
        "CUDACXX": str(toolkit / "bin" / "nvcc"),
        "HOROVOD_CUDA_HOME": str(toolkit),
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_WITH_TENSORFLOW": "1",
    }


def build_environment(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """Of a build of the native library."""
    folder.mkdir()
    return horovod_wheels.build_environment(environment, folder)


def test_what_the_environment_says_of_cuda_and_horovod_does_not_reach_the_build(
    with_cuda: dict[str, str], tmp_path: Path
) -> None:
    built_in = build_environment(with_cuda, tmp_path / "work")
    assert not [name for name in built_in if "CUDA" in name or "GPU" in name]
    assert "HOROVOD_WITH_TENSORFLOW" not in built_in
    assert (built_in["HOROVOD_WITH_PYTORCH"], built_in["HOROVOD_CPU_OPERATIONS"]) == ("1", "GLOO")
    assert built_in["PATH"] == with_cuda["PATH"], "what else is on PATH may be needed"


@pytest.mark.thorough
def test_horovod_is_told_that_pytorch_is_for_cpus(with_cuda: dict[str, str], tmp_path: Path) -> None:
    """It asks in a process of its own: there PyTorch looks at PATH and at /usr/local/cuda."""
    pytest.importorskip("torch")
    built_in = build_environment(with_cuda, tmp_path / "work")
    said = subprocess.run([sys.executable, "-c", ASKS], env=built_in, capture_output=True, text=True)
    assert said.stdout == "False False\n", said.stderr


@pytest.mark.processes
def test_cmake_neither_finds_nor_tries_a_compiler_for_cuda(with_cuda: dict[str, str], tmp_path: Path) -> None:
    if shutil.which("cmake") is None or shutil.which("g++") is None:
        pytest.skip("cmake and g++ are not installed")
    source = tmp_path / "source"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(LOOKS_FOR_CUDA)
    built_in = build_environment(with_cuda, tmp_path / "work")

    def configured(cmake: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        build = tmp_path / f"build-{Path(cmake).parent.name}"
        return subprocess.run(
            [cmake, str(source), "-B", str(build)], env=environment, capture_output=True, text=True
        )

    with_toolkit = configured("cmake", {**with_cuda, "CXX": "g++"})
    assert "CUDA" in with_toolkit.stderr, "the toolkit is one that CMake finds"
    assert with_toolkit.returncode != 0, "and cannot use"
    without = configured(built_in["HOROVOD_CMAKE"], built_in)
    assert without.returncode == 0, without.stderr
    assert "nvcc" not in without.stdout


@pytest.mark.thorough
def test_the_wheel_of_python_files_compiles_nothing_and_is_called_so(
    with_cuda: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in with_cuda.items():
        monkeypatch.setenv(name, value)
    source = tmp_path / "horovod-0.28.1"
    (source / "horovod").mkdir(parents=True)
    (source / "horovod" / "__init__.py").write_text("")
    (source / "setup.py").write_text(SETUP)
    with tarfile.open(tmp_path / "horovod-0.28.1.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)
    made = horovod_wheels.make_python_files(
        tmp_path / "horovod-0.28.1.tar.gz", tmp_path / "wheels", tmp_path / "work"
    )
    assert made.name.startswith("horovod-0.28.1+python.files-")
    assert list((tmp_path / "wheels").iterdir()) == [made]
