"""An ApplicationMaster in its container: one container, then, when the test says so, another one."""

import contextlib
import os
import sys
import time
from pathlib import Path

from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn import credentials, records
from flexo_yarn.application_master import ApplicationMaster, Ask
from flexo_yarn.ipc.errors import Unreachable
from flexo_yarn.node_managers import NodeManagers

address, scratch = sys.argv[1], Path(sys.argv[2])
own = credentials.read(Path(os.environ[credentials.VARIABLE])).of_kind(credentials.AM_RM_KIND)
master = ApplicationMaster(((address, 8030),), own)
master.register()


def run(number):
    master.ask(Ask(number, records.resource(128, 1, 1)))
    while True:
        time.sleep(0.1)
        try:
            allocated = master.heartbeat().allocated
        except Unreachable:
            continue
        for container in allocated:
            launch = pb.ContainerLaunchContext(command=[f"touch {scratch}/container-{number}; sleep 30"])
            NodeManagers(master.nm_tokens).start(container, launch)
            return


run(1)
while not (scratch / "go-on").exists():
    with contextlib.suppress(Unreachable):
        master.heartbeat()
    time.sleep(0.2)
run(2)
while not (scratch / "container-2").exists():
    time.sleep(0.1)
master.finish(pb.APP_SUCCEEDED)
