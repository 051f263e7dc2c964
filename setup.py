"""Generates the gRPC code of protos/ before packaging: setuptools has no declarative hook for that.

Everything else about the package stands in pyproject.toml.
"""

import sys
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "protos"))

from generate import generate  # noqa: E402

generate()

setup(
    packages=[
        *find_packages("daemon"),
        *("horovod_elastic." + name for name in find_packages("horovod_elastic")),
        *("flexo_yarn." + name for name in find_packages("yarn_plugin/flexo_yarn")),
        "horovod_elastic",
        "flexo_yarn",
        "flexo_protos",
        "flexo_protos.hadoop",
        "flexo_protos.leader_leases",
        "flexo_protos.v1",
    ]
)
