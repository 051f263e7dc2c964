"""The command `flexo aggregator`: a pool's Aggregator, which tells flexod its job of the cluster, if any."""

from __future__ import annotations

import os

from horovod_elastic.aggregation import pool
from horovod_elastic.platforms import registry


def main(arguments: list[str] | None = None) -> int:
    """See pool.main."""
    return pool.main(arguments, registry.find(os.environ).allocation().job_id)
