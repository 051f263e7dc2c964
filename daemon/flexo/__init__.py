"""flexo: elastic deep learning on a shared cluster. docs/explanation/architecture.md draws the house.

Training scripts call `flexo.elastic` (docs/howto/declare-state.md). It belongs to the part of flexo inside a
job, and comes from there when a script first asks for it: flexod and the commands never do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod_elastic.declared import ElasticJob, elastic

__all__ = ["ElasticJob", "__version__", "elastic"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in ("ElasticJob", "elastic"):
        from horovod_elastic import declared

        return getattr(declared, name)
    raise AttributeError(f"module 'flexo' has no attribute '{name}'")
