"""flexo: elastic deep learning on a shared cluster. docs/explanation/architecture.md draws the house.

Training scripts call `flexo.elastic` (docs/howto/declare-state.md). It belongs to the part of flexo inside a
job. Programs of users call `flexo.submit` (docs/howto/from-python.md), which belongs to the commands. Both
come from there when somebody first asks for them: flexod never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flexo_cli.api import Explanation, Job, Outcome, submit
    from flexo_cli.connection import Busy, Refusal, Unreachable
    from horovod_elastic.declared import ElasticJob, elastic

__all__ = [
    "Busy",
    "ElasticJob",
    "Explanation",
    "Job",
    "Outcome",
    "Refusal",
    "Unreachable",
    "__version__",
    "elastic",
    "submit",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in ("ElasticJob", "elastic"):
        from horovod_elastic import declared

        return getattr(declared, name)
    if name in ("Explanation", "Job", "Outcome", "submit"):
        from flexo_cli import api

        return getattr(api, name)
    if name in ("Busy", "Refusal", "Unreachable"):
        from flexo_cli import connection

        return getattr(connection, name)
    raise AttributeError(f"module 'flexo' has no attribute '{name}'")
