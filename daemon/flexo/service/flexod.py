"""Starts and ends flexod: options, settings, lock, event store, server; alone, or in turns with others.

The main thread runs the event loop with the leaders' streams. The controller has a thread of its own
(active.py).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import gc
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc.aio
import structlog

import flexo
from flexo.availability.leadership_guard import ALONE
from flexo.availability.which_host import NotOneOfThem, own_address
from flexo.clusters import registry as registry_of_kinds
from flexo.clusters.base import ActionRefused
from flexo.config import DEFAULT_PATH, ConfigError, LogSettings, Settings
from flexo.event_store.store import EventStore
from flexo.loaning.lstm import TorchMissing
from flexo.service import logs, notify
from flexo.service.active import Active, say_ready
from flexo.service.budgets import STANDARD
from flexo.service.failover_loop import FailoverLoop
from flexo.service.garbage import garbage_collected
from flexo.service.metrics_endpoint import metrics_served
from flexo.service.process import CannotServe, Process
from flexo.service.reloading import Configuration
from flexo.service.server import AddressUnusable, ServiceRouter, check_address, listen
from flexo.service.tls import CertificateUnusable, server_credentials
from flexo.service.watchdog import none_allowed
from flexo.service.workers import start_workers
from flexo_protos.connections import ConnectionGuard
from flexo_protos.credentials import MUNGE, Authenticator, NotAuthentic, new_authenticator
from flexo_protos.leader_leases.lease import StoreUnavailable

FAILED = 1
USAGE = 2
FAREWELL_S = 3.0
"""The time that streams and calls may take to end when flexod stops."""
_COLLECT_AFTER = (50_000, 10, 10)
"""The thresholds of Python's garbage collector. A poll of 20,000 jobs makes a million objects, of which
hardly any need the collector. With Python's own thresholds it took a fifth of the loop's time. garbage.py
collects the rest."""
_LEVELS = ("debug", "info", "warning", "error")

_log = structlog.get_logger("flexo.service")


def main() -> None:
    """Entry point of `flexod`: exit 0 after SIGTERM or SIGINT, 1 when it cannot go on, 2 for usage."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # a leader that hangs up is no news to an administrator
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # commands are started beside it
    signal.signal(signal.SIGHUP, lambda *_: None)  # it would end flexod; once flexod serves, it reloads
    options = make_parser().parse_args()
    configuration = Configuration(options.config, options.dry_run)
    try:
        settings = configuration.read()
        if settings.high_availability.hosts and not options.check_config:
            address = own_address(settings.high_availability.hosts, options.address)
            configuration = replace(configuration, address=address)
            settings = configuration.read()
    except NotOneOfThem as error:
        sys.stderr.write(f"flexod: {options.config}: {error}\n")
        sys.exit(USAGE)
    except ConfigError as error:
        sys.stderr.write("".join(f"flexod: {problem}\n" for problem in error.problems))
        sys.exit(USAGE)
    if options.check_config:
        print("".join(f"{notice}\n" for notice in settings.renamed) + f"{options.config}: in order")
        return
    logs.set_up(_log_settings(settings.log, options))
    for notice in settings.renamed:
        _log.warning(notice)
    try:
        serve(configuration, settings, everywhere=options.every_interface)
    except CannotServe as error:
        sys.stderr.write(f"flexod: {error}\n")
        sys.exit(FAILED)


def serve(configuration: Configuration, settings: Settings, *, everywhere: bool = False) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP makes flexod read `configuration` again. Raises CannotServe."""
    authenticator = _working_authenticator(settings)
    try:
        check_address(settings.service.address, everywhere)
        if settings.metrics.listen:
            check_address(settings.metrics.listen, everywhere, "[metrics] listen")
        _allow_many_connections()
        gc.set_threshold(*_COLLECT_AFTER)
        asyncio.run(_serve(configuration, settings, authenticator))
    except (AddressUnusable, CertificateUnusable, StoreUnavailable, TorchMissing) as error:
        raise CannotServe(str(error)) from error


async def _serve(configuration: Configuration, settings: Settings, authenticator: Authenticator) -> None:
    credentials = server_credentials(settings.tls, settings.service.address)
    start_workers(asyncio.get_running_loop())
    process = Process(configuration, settings)
    moving = none_allowed(process.counters, asyncio.get_running_loop(), settings.of_cluster.timeout_s)
    guard = ConnectionGuard(
        STANDARD.silent_connections_of_a_host,
        STANDARD.connections,
        process.connections_of_jobs,
        warn=_log.warning,
    )
    with metrics_served(settings.metrics.listen, process.registry), moving, guard.watching():

        def listening(router: ServiceRouter) -> Awaitable[grpc.aio.Server]:
            return listen(settings.service.address, authenticator, router, credentials, guard)

        async with garbage_collected():
            if settings.high_availability.hosts:
                await _serve_in_turns(process, listening)
            else:
                await _serve_alone(process, listening)


_Listening = Callable[[ServiceRouter], Awaitable[grpc.aio.Server]]


async def _serve_alone(process: Process, listening: _Listening) -> None:
    settings, ended = process.settings, process.ended
    with _only_flexod_of(settings.event_store.path), _open_event_store(settings) as event_store:
        active = Active.begin(settings, event_store, ALONE, process.counters, lambda: None)
        process.begin_to_act(active, settings)
        router = ServiceRouter()
        router.activate(active.services, ALONE)
        server = await listening(router)
        await say_ready(settings, active.cluster)
        notify.tell(notify.READY)
        async with active.acting(process.registry, ended) as failed:
            await ended.wait()
            notify.tell(notify.STOPPING)
            _log.info("flexod stops; grants stand")
            active.close()
            await server.stop(FAREWELL_S)
    if failed.is_set():
        raise CannotServe("the controller has failed; its error stands above")


async def _serve_in_turns(process: Process, listening: _Listening) -> None:
    turns = FailoverLoop(process)
    server = await listening(turns.router)
    notify.tell(notify.READY)
    try:
        await turns.take()
        notify.tell(notify.STOPPING)
    finally:
        await server.stop(FAREWELL_S)


def _working_authenticator(settings: Settings) -> Authenticator:
    """An authenticator that was tried once: a flexod that cannot tell callers apart is of no use.

    Where leaders of jobs prove otherwise who they are, flexod serves them without it, and refuses commands.
    """
    service, kind = settings.service, settings.cluster.kind
    socket = service.munge_socket if service.authentication == MUNGE else None
    authenticator = new_authenticator(service.authentication, socket=str(socket) if socket else None)
    try:
        authenticator.verify(authenticator.credential("start"), "start")
    except NotAuthentic as error:
        if not registry_of_kinds.authenticates(kind):
            raise CannotServe(str(error)) from error
        _log.warning(f"flexod serves jobs, and no commands until {service.authentication} works: {error}")
    try:
        return registry_of_kinds.authenticator(kind, settings.of_cluster, authenticator)
    except ActionRefused as error:
        raise CannotServe(str(error)) from error


@contextlib.contextmanager
def _only_flexod_of(event_store: Path) -> Iterator[None]:
    """Hold the lock beside `event_store`: two flexods on one cluster would grant each GPU twice."""
    path = event_store.with_name(event_store.name + ".lock")
    try:
        file = path.open("a+")
    except OSError as error:
        raise CannotServe(f"cannot write beside the event store: {path}: {error.strerror}") from error
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read(20).strip() or "unknown"
            raise CannotServe(f"another flexod (pid {holder}) uses the event store {event_store}") from error
        with contextlib.suppress(OSError):  # the lock is what counts, also on a full disk
            os.truncate(file.fileno(), 0)
            os.write(file.fileno(), f"{os.getpid()}\n".encode())
        yield


@contextlib.contextmanager
def _open_event_store(settings: Settings) -> Iterator[EventStore]:
    kept = settings.event_store
    event_store = EventStore(kept.path, kept.keep_days, max_mib=kept.max_mib)
    try:
        yield event_store
    finally:
        event_store.close()


def _allow_many_connections() -> None:
    """Allow as many open files as possible: each leader takes one, and the usual 1,024 would be too few."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _log_settings(settings: LogSettings, options: argparse.Namespace) -> LogSettings:
    """The settings of the log. The command line takes precedence."""
    said = {"level": options.log_level, "format": "json" if options.log_json else None}
    return settings.model_copy(update={key: value for key, value in said.items() if value is not None})


def make_parser() -> argparse.ArgumentParser:
    """The parser of flexod's options. flexod's manual page is made from it, too."""
    parser = argparse.ArgumentParser(
        prog="flexod", description="Grants idle GPUs of a cluster to elastic jobs."
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=Path(os.environ.get("FLEXO_CONFIG") or DEFAULT_PATH),
        help="configuration; else $FLEXO_CONFIG, else %(default)s",
    )
    parser.add_argument("--dry-run", action="store_true", help="decide and record, change nothing")
    parser.add_argument("--check-config", action="store_true", help="check the configuration and end")
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        default="",
        help="which of [high_availability] hosts this one is, where its host has more than one of them",
    )
    parser.add_argument(
        "--every-interface", action="store_true", help="allow an address such as 0.0.0.0, on all networks"
    )
    parser.add_argument(
        "--log-level", choices=_LEVELS, help="the least that is logged; else [log] level, which is info"
    )
    parser.add_argument(
        "--log-json", action="store_true", help="log one JSON object a line; else [log] format"
    )
    parser.add_argument("--version", action="version", version=f"flexod {flexo.__version__}")
    return parser


if __name__ == "__main__":
    main()
