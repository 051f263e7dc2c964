"""Installs a checkout as editable, with the gRPC code of protos/ generated, for which setuptools has no
declarative hook.

Everything else about the checkout stands in pyproject.toml. packages/own_wheels.py builds the wheels.
"""

import sys
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "protos"))

from generate import generate  # noqa: E402

if {"bdist_wheel", "sdist"} & set(sys.argv):
    sys.exit(
        "flexo: a checkout is installed with ./setup.sh or pip install --editable only. `make wheel` builds"
        " two wheels: one for users' environments, and one for sites."
    )
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
