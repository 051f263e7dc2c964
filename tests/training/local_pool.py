"""A pool's Aggregator without flexod: in this folder it writes its port; tokens are signed with this key."""

import sys
from pathlib import Path

from horovod_elastic.aggregation.doors import PoolDoor
from horovod_elastic.aggregation.server import Server

folder, key = sys.argv[1:]
server = Server("", "127.0.0.1", 0, PoolDoor(bytes.fromhex(key)))
Path(folder, "port").write_text(str(server.port))
server.serve()
