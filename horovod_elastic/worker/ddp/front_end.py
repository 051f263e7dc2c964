"""The front end of the core for torch.distributed: communicators go into the script's elastic group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod_elastic.core.c10d.communicator import Communicator
from horovod_elastic.core.c10d.timeline import Timeline
from horovod_elastic.worker.ddp.elastic_group import ElasticGroup


class TorchFrontEnd:
    """See torch_core.FrontEnd."""

    def __init__(self, group: ElasticGroup) -> None:
        self.timeline = Timeline()
        self.group = group
        self._communicator: Communicator | None = None

    def adopt(self, communicator: Communicator | None, process_sets: Sequence[Any]) -> None:
        """See FrontEnd.adopt."""
        self._communicator = communicator
        if communicator is None:
            self.group.leave()
        else:
            self.group.enter(communicator)

    def address(self) -> str:
        """This machine's address towards the other workers. There must be other workers."""
        assert self._communicator is not None
        return self._communicator.address()

    def entries(self) -> Any:
        """A store that all workers of the present communicator share, with `set` and `get`."""
        assert self._communicator is not None
        return self._communicator.entries()
