"""The command `python -m horovod_elastic run|agent|share|aggregator|hosts`: all that a job needs, without
the packages of the other commands.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command's own module, and import no other command's module."""
    command, arguments = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    if command == "run":
        from horovod_elastic import launcher

        return launcher.main(arguments)
    if command == "agent":
        from horovod_elastic.agent import process

        process.end_process(lambda: process.main(arguments))
    if command == "share":
        from horovod_elastic.sharing.command import main as share

        return share(arguments)
    if command == "aggregator":
        from horovod_elastic.pool_aggregator import main as aggregator

        return aggregator(arguments)
    if command == "hosts":
        from horovod_elastic import hosts

        return hosts.main(arguments)
    print("usage: python -m horovod_elastic run|agent|share|aggregator|hosts ...", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
