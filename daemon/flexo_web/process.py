"""Starts flexo-web: its options, its rights (none), and its server."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvicorn

from flexo_cli.connection import Daemon, Unreachable, find_address
from flexo_protos import web_login
from flexo_protos.credentials import NotAuthentic, new_authenticator
from flexo_web.app import Site

_FAILED, _USAGE = 1, 2
_CONNECTIONS: Final = 2000
_LAST_ANSWERS_S: Final = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of flexo-web. It ends with 2 for a wrong command line, with 1 if it cannot begin."""
    options = make_parser().parse_args(arguments)
    if os.geteuid() == 0:
        _end("flexo-web needs no rights and refuses root's: run it as an account of its own", _FAILED)
    try:
        url = web_login.checked(options.url)
        host, port = _endpoint(options.listen)
    except ValueError as error:
        _end(f"flexo-web: {error}", _USAGE)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        authenticator = new_authenticator()
        address = find_address(options.daemon)
    except (NotAuthentic, Unreachable) as error:
        _end(f"flexo-web: {error}", _FAILED)
    site = Site(lambda: Daemon(address), authenticator, url, options.reports)
    print(f"flexo-web listens on {options.listen}; people open {url}", flush=True)
    uvicorn.run(
        site.app(),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,  # it would hold links
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_LAST_ANSWERS_S,
    )


def make_parser() -> argparse.ArgumentParser:
    """The parser of flexo-web's options."""
    parser = argparse.ArgumentParser(
        prog="flexo-web", description="Shows on web pages what flexod sees and does. Read-only."
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default="127.0.0.1:6837", help="where it listens; else %(default)s"
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        default=os.environ.get(web_login.URL_VARIABLE) or web_login.DEFAULT_URL,
        help=f"the URL of the pages for people; else ${web_login.URL_VARIABLE}, else {web_login.DEFAULT_URL}",
    )
    parser.add_argument(
        "--daemon", metavar="HOST:PORT", help="flexod's address; else $FLEXO_DAEMON, else the configuration"
    )
    parser.add_argument(
        "--reports",
        metavar="FOLDER",
        type=Path,
        help="a folder with reports of `flexo whatif` (*.html), for the page What if",
    )
    return parser


def _endpoint(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"--listen {text}: HOST:PORT is allowed, as in 127.0.0.1:6837")
    return host.strip("[]"), int(port)


def _end(text: str, code: int) -> None:
    sys.stderr.write(f"{text}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
