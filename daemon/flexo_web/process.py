"""Starts flexo-web: its options, its rights (none), and its server."""

from __future__ import annotations

import argparse
import importlib.util
import os
import pwd
import re
import resource
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import uvicorn

from flexo_cli.connection import Daemon, Unreachable, find_address
from flexo_protos import web_login
from flexo_protos.credentials import NotAuthentic, new_authenticator
from flexo_protos.installing import Wheel, how_to_install
from flexo_web.app import Site
from flexo_web.openid import OpenId, Provider
from flexo_web.proxy_socket import Proxy, listening, protocol_for
from flexo_web.refusals import RefusalLog

_FAILED, _USAGE = 1, 2
_HEADER: Final = "X-Remote-User"
_CLAIM: Final = "preferred_username"
_HEADER_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
_BACKLOG: Final = 512
"""The most connections that are accepted at once, before one is ended for another."""
_FILES: Final = 8192
"""As many as two sockets' connections need, and then some; a shell's limit is often 1,024."""
_LAST_ANSWERS_S: Final = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of flexo-web. It ends with 2 for a wrong command line, with 1 if it cannot begin."""
    options = make_parser().parse_args(arguments)
    if os.geteuid() == 0:
        _end("flexo-web needs no rights and refuses root's: run it as an account of its own", _FAILED)
    try:
        url = web_login.checked(options.url)
        host, port = _endpoint(options.listen)
        proxy = _proxy(options)
        openid = _openid(options, url)
    except ValueError as error:
        _end(f"flexo-web: {error}", _USAGE)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        authenticator = new_authenticator()
        address = find_address(options.daemon)
    except (NotAuthentic, Unreachable) as error:
        _end(f"flexo-web: {error}", _FAILED)
    _allow_files()
    refusals = RefusalLog()
    header = proxy.header if proxy else ""
    site = Site(lambda: Daemon(address), authenticator, url, header, refusals, openid, options.reports)
    with ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(each) for each in _sockets(host, port, proxy)]
        through = f", and at {proxy.socket} for uid {proxy.uid}" if proxy else ""
        print(f"flexo-web listens on {options.listen}{through}; people open {url}", flush=True)
        uvicorn.Server(_server(site, proxy, refusals)).run(sockets)


def _allow_files() -> None:
    """Let this process have as many open files as its connections need, if its hard limit allows them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _server(site: Site, proxy: Proxy | None, refusals: RefusalLog) -> uvicorn.Config:
    return uvicorn.Config(
        site.app(),
        http=protocol_for(proxy, refusals),  # which bounds connections
        ws="none",
        loop="asyncio",
        log_level="error",  # with warnings, whoever sends nonsense could fill the log
        access_log=False,  # it would hold links
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_LAST_ANSWERS_S,
    )


def _sockets(host: str, port: int, proxy: Proxy | None) -> list[socket.socket]:
    """The sockets to serve. If one cannot be had, the process ends."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = [socket.create_server((host, port), family=family)]
    except OSError as error:
        _end(f"flexo-web: cannot listen on {host}:{port}: {error.strerror or error}", _FAILED)
    if proxy:
        try:
            made.append(listening(proxy.socket))
        except OSError as error:
            _end(f"flexo-web: cannot listen at {proxy.socket}: {error.strerror or error}", _FAILED)
    return made


def make_parser() -> argparse.ArgumentParser:
    """The parser of flexo-web's options."""
    parser = argparse.ArgumentParser(
        prog="flexo-web", description="Shows on web pages what flexod sees and does."
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
    proxy = parser.add_argument_group("a proxy that signs users in (off by default)")
    proxy.add_argument("--proxy-socket", metavar="PATH", type=Path, help="the Unix socket for the proxy")
    proxy.add_argument("--proxy-account", metavar="ACCOUNT", help="the only account that may connect there")
    proxy.add_argument(
        "--proxy-header",
        metavar="NAME",
        default=_HEADER,
        help="the header in which the proxy names the user; else %(default)s",
    )
    openid = parser.add_argument_group("a provider of OpenID Connect (off by default)")
    openid.add_argument("--openid-issuer", metavar="URL", help="the provider's issuer")
    openid.add_argument("--openid-client", metavar="ID", help="the id of flexo-web at the provider")
    openid.add_argument(
        "--openid-secret-file",
        metavar="FILE",
        type=Path,
        help="flexo-web's password there",
    )
    openid.add_argument(
        "--openid-claim",
        metavar="NAME",
        default=_CLAIM,
        help="the claim that has the name of the user's account; else %(default)s",
    )
    return parser


def _openid(options: argparse.Namespace, url: str) -> OpenId | None:
    """The client of the provider; None: there is none. Raises ValueError."""
    if options.openid_issuer is None and options.openid_client is None:
        return None
    if options.openid_issuer is None or options.openid_client is None:
        raise ValueError("--openid-issuer and --openid-client go together")
    if importlib.util.find_spec("jwt") is None:
        install = how_to_install(Wheel.SITES, "openid")
        raise ValueError(f"OpenID Connect needs PyJWT, which is not installed here. {install}")
    secret = _secret(options.openid_secret_file) if options.openid_secret_file else ""
    return OpenId(Provider(options.openid_issuer, options.openid_client, secret, options.openid_claim), url)


def _secret(path: Path) -> str:
    """The text in a file that nobody but this account and root can read. Raises ValueError."""
    try:
        with path.open() as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--openid-secret-file {path}: {error}") from error
    if mode & 0o077:
        raise ValueError(f"--openid-secret-file {path}: others can read it: chmod 600 {path}")
    if not text:
        raise ValueError(f"--openid-secret-file {path}: it is empty")
    return text


def _proxy(options: argparse.Namespace) -> Proxy | None:
    """The proxy that is trusted; None: there is none. Raises ValueError."""
    path, account, header = options.proxy_socket, options.proxy_account, options.proxy_header
    if path is None and account is None:
        return None
    if path is None or account is None:
        raise ValueError("--proxy-socket and --proxy-account go together")
    if not path.is_absolute():
        raise ValueError(f"--proxy-socket {path}: an absolute path is allowed")
    if not _HEADER_NAME.fullmatch(header):
        raise ValueError(f"--proxy-header {header}: letters, digits and hyphens are allowed")
    try:
        uid = pwd.getpwnam(account).pw_uid
    except KeyError:
        raise ValueError(f"--proxy-account {account}: this host has no such account") from None
    return Proxy(path, uid, header)


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
