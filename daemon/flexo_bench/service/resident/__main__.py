"""A parameter server as a process: python -m flexo_bench.service.resident --number=N --listener=FD."""

from __future__ import annotations

import argparse
import socket

import torch

from flexo_bench.service.resident.server import Server


def main() -> None:
    """Serve on a socket that listens, which the caller has made."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--listener", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    Server(options.number, socket.socket(fileno=options.listener)).serve()


if __name__ == "__main__":
    main()
