"""A job's access to YARN. Satellites are containers of a second, preemptible application of the same job."""

from collections.abc import Mapping

from horovod_elastic.platforms.base import Kind, Platform
from horovod_elastic.platforms.yarn.environment import KIND_NAME, RESOURCE_MANAGER


def _open(environment: Mapping[str, str]) -> Platform:
    # Jobs on other clusters do not need Hadoop's messages, which this imports.
    from horovod_elastic.platforms.yarn.platform import YarnPlatform

    return YarnPlatform(environment)


KIND = Kind(KIND_NAME, recognizes=lambda environment: RESOURCE_MANAGER in environment, open=_open)
