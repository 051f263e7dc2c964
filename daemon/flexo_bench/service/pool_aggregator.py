"""A pool's Aggregator without flexod: it admits jobs whose token is signed with the key that it is given.

Its server is that of `flexo aggregator`. It writes the server's port into a file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from horovod_elastic import open_files
from horovod_elastic.aggregation.doors import PoolDoor
from horovod_elastic.aggregation.place import write_file
from horovod_elastic.aggregation.server import Server


def main() -> None:
    """Serve until killed. The key comes over the standard input, in hexadecimal digits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", required=True, help="the address at which jobs reach it")
    parser.add_argument("--port-file", required=True, type=Path, help="where it writes its port")
    asked = parser.parse_args()
    open_files.raise_limit()
    server = Server("", asked.host, 0, PoolDoor(bytes.fromhex(sys.stdin.read())))
    write_file(asked.port_file, str(server.port))
    server.serve()


if __name__ == "__main__":
    main()
