"""What all containers of one job have in common: Python, files, variables and credentials.

The submission makes it. The ApplicationMaster reads it from its environment, for the containers that it
starts.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn.credentials import AM_RM_KIND, Credentials
from flexo_yarn.launch import command_line, environment
from horovod_elastic.platforms.yarn.environment import TEMPLATE

ENVIRONMENT_LINK: Final = "env"
"""The name of the unpacked archive with Python in a container's folder."""
_PYTHON = "FLEXO_YARN_PYTHON"
_START = "horovod_elastic.platforms.yarn.container_start"


@dataclass(frozen=True, slots=True)
class Template:
    """See the module. `common`: a launch context with files and variables only."""

    python: str
    """Python's path on a node, absolute or in the container's folder."""
    common: pb.ContainerLaunchContext
    credentials: Credentials

    @classmethod
    def of(
        cls,
        python: str,
        files: Sequence[pb.NamedLocalResource],
        variables: Mapping[str, str],
        credentials: Credentials,
    ) -> Template:
        """The template with these parts."""
        return cls(
            python,
            pb.ContainerLaunchContext(local_resources=files, environment=environment(variables)),
            credentials,
        )

    @classmethod
    def read(cls, own: Mapping[str, str], credentials: Credentials) -> Template:
        """The template of the job whose ApplicationMaster has `own` as environment, and these credentials."""
        common = pb.ContainerLaunchContext.FromString(base64.b64decode(own[TEMPLATE]))
        return cls(own[_PYTHON], common, credentials.without(AM_RM_KIND))

    def for_master(self, module: str, arguments: Sequence[str]) -> pb.ContainerLaunchContext:
        """What the ApplicationMaster's container runs: a module, with the template in its environment."""
        text = base64.b64encode(self.common.SerializeToString()).decode()
        return self._launch(["-m", module, *arguments], {TEMPLATE: text, _PYTHON: self.python})

    def for_part(self, arguments: Sequence[str], variables: Mapping[str, str]) -> pb.ContainerLaunchContext:
        """What another container runs: a supervisor, by way of container_start.py."""
        return self._launch(["-m", _START, *arguments], variables)

    def _launch(self, words: Sequence[str], variables: Mapping[str, str]) -> pb.ContainerLaunchContext:
        launch = pb.ContainerLaunchContext(
            tokens=self.credentials.to_bytes(), command=[command_line([self.python, *words])]
        )
        launch.MergeFrom(self.common)
        launch.environment.extend(environment(variables))
        return launch
