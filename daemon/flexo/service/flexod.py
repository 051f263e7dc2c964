"""flexod's beginning and end: settings, lock, journal, cluster, controller thread, server, signals.

The event loop with the leaders' streams has the main thread, the controller one of its own. When flexod
ends, streams close and nothing else happens: grants stand, and training goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import structlog

import flexo
from flexo.clusters.base import ActionRefused, Cluster, ClusterUnreachable
from flexo.clusters.slurm import BorrowedPartition, SlurmCluster, connect
from flexo.config import DEFAULT_PATH, ConfigError, Settings, load
from flexo.controller import Controller
from flexo.journal import Journal
from flexo.loaning.lstm import TorchMissing
from flexo.service import notify
from flexo.service.admin_service import AdminService
from flexo.service.inference_service import InferenceService
from flexo.service.jobs_service import JobService, Pace
from flexo.service.leaders import LeaderDesk
from flexo.service.lending_setup import lending_of, pushed_demand
from flexo.service.server import AddressUnusable, check_address, listen
from flexo_protos.credentials import Munge, NotAuthentic

FAILED = 1
USAGE = 2
FAREWELL_S = 3.0
"""How long streams and calls may take to end when flexod stops."""
_LEVELS = ("debug", "info", "warning", "error")

_log = structlog.get_logger("flexo.service")


class CannotServe(Exception):
    """flexod does not start or cannot go on; the message says why in a sentence."""


def main() -> None:
    """Entry point of `flexod`: exit 0 after SIGTERM or SIGINT, 1 when it cannot go on, 2 for usage."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # a leader that hangs up is no news to an administrator
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # Slurm's commands are started beside it
    options = make_parser().parse_args()
    _set_up_logging(options.log_level, options.log_json)
    try:
        settings = load(options.config)
    except ConfigError as error:
        sys.stderr.write("".join(f"flexod: {problem}\n" for problem in error.problems))
        sys.exit(USAGE)
    if options.check_config:
        print(f"{options.config}: in order")
        return
    if options.dry_run:
        controller = settings.controller.model_copy(update={"dry_run": True})
        settings = settings.model_copy(update={"controller": controller})
    try:
        serve(settings, everywhere=options.every_interface)
    except CannotServe as error:
        sys.stderr.write(f"flexod: {error}\n")
        sys.exit(FAILED)


def serve(settings: Settings, *, everywhere: bool = False) -> None:
    """Be flexod until SIGTERM or SIGINT. Raises CannotServe."""
    authenticator = _working_munge(settings)
    try:
        check_address(settings.service.address, everywhere)
        with _only_flexod_of(settings.journal.path), _open_journal(settings) as journal:
            _allow_many_connections()
            asyncio.run(_serve(settings, authenticator, journal))
    except (AddressUnusable, TorchMissing) as error:
        raise CannotServe(str(error)) from error


async def _serve(settings: Settings, authenticator: Munge, journal: Journal) -> None:
    cluster = _connect(settings)
    _log.info(f"the cluster is read with {cluster.read_with}")
    desk = LeaderDesk()
    pushed = pushed_demand(settings.loaning)
    lending = lending_of(settings, journal, pushed)
    controller = Controller(settings, cluster, desk, journal, lending=lending)
    jobs = JobService(desk, controller, Pace())
    admin = AdminService(controller, journal, desk, settings.service.administrators)
    may_push = frozenset((*settings.service.administrators, *settings.loaning.inference_users))
    inference = InferenceService(pushed, may_push, desk.wake.set)
    ended = asyncio.Event()
    _end_on_signals(ended)
    server = await listen(settings.service.address, authenticator, jobs, admin, inference)
    await _say_ready(settings, cluster)
    notify.tell(notify.READY)
    with _controller_thread(controller, desk, asyncio.get_running_loop(), ended) as failed:
        await ended.wait()
        notify.tell(notify.STOPPING)
        _log.info("flexod stops; grants stand")
        jobs.close()
        inference.close()
        await server.stop(FAREWELL_S)
    if failed.is_set():
        raise CannotServe("the controller has failed; its error stands above")


def _connect(settings: Settings) -> SlurmCluster:
    slurm, loaning = settings.slurm, settings.loaning
    if not loaning.enabled:
        return connect(slurm.conf, frozenset({slurm.satellite_partition}), slurm.timeout_s)
    borrowed = BorrowedPartition(loaning.partition, loaning.edit_command, loaning.satellite_partition)
    satellites = frozenset({slurm.satellite_partition, *borrowed.names})
    return connect(slurm.conf, satellites, slurm.timeout_s, None if loaning.static else borrowed)


async def _say_ready(settings: Settings, cluster: Cluster) -> None:
    """One line for people and scripts; the cluster has no other user yet, as it must (it is not shared)."""
    try:
        traits = await asyncio.to_thread(cluster.traits)
        slurm = f"Slurm {traits.version} (cluster {traits.name})"
    except (ClusterUnreachable, ActionRefused) as error:
        slurm = f"Slurm does not answer yet: {error}"
    policy = settings.controller.policy + (" (dry run)" if settings.controller.dry_run else "")
    print(
        f"flexod {flexo.__version__} ready: address {settings.service.address}, policy {policy}, {slurm}",
        flush=True,
    )


@contextlib.contextmanager
def _controller_thread(
    controller: Controller, desk: LeaderDesk, loop: asyncio.AbstractEventLoop, ended: asyncio.Event
) -> Iterator[threading.Event]:
    """The controller goes round while the context lasts; `ended` is set if it falls over before."""
    stop, failed = threading.Event(), threading.Event()

    def go_round() -> None:
        try:
            controller.run(stop)
        except Exception:
            _log.exception("the controller has failed")
            failed.set()
            loop.call_soon_threadsafe(ended.set)

    thread = threading.Thread(target=go_round, name="controller")
    thread.start()
    try:
        yield failed
    finally:
        stop.set()
        desk.wake.set()
        thread.join()


def _end_on_signals(ended: asyncio.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)


def _working_munge(settings: Settings) -> Munge:
    """MUNGE, tried once: a flexod that cannot tell callers apart is of no use to anybody."""
    socket = settings.service.munge_socket
    munge = Munge(str(socket) if socket else None)
    try:
        munge.verify(munge.credential("start"), "start")
    except NotAuthentic as error:
        raise CannotServe(str(error)) from error
    return munge


@contextlib.contextmanager
def _only_flexod_of(journal: Path) -> Iterator[None]:
    """Hold the lock beside `journal`: two flexods on one cluster would grant each GPU twice."""
    path = journal.with_name(journal.name + ".lock")
    try:
        file = path.open("a+")
    except OSError as error:
        raise CannotServe(f"cannot write beside the journal: {path}: {error.strerror}") from error
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read(20).strip() or "unknown"
            raise CannotServe(f"another flexod (pid {holder}) uses the journal {journal}") from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextlib.contextmanager
def _open_journal(settings: Settings) -> Iterator[Journal]:
    journal = Journal(settings.journal.path, settings.journal.keep_days)
    try:
        yield journal
    finally:
        journal.close()


def _allow_many_connections() -> None:
    """One file for each leader: the customary 1,024 would be too few."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _set_up_logging(level: str, as_json: bool) -> None:
    """One line an event on the error output, which systemd keeps."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def make_parser() -> argparse.ArgumentParser:
    """flexod's options; its manual page is made from them, too."""
    parser = argparse.ArgumentParser(
        prog="flexod", description="Grants idle GPUs of a Slurm cluster to elastic jobs."
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
        "--every-interface", action="store_true", help="allow an address such as 0.0.0.0, on all networks"
    )
    parser.add_argument(
        "--log-level", choices=_LEVELS, default="info", help="the least that is logged; else %(default)s"
    )
    parser.add_argument("--log-json", action="store_true", help="log one JSON object a line")
    parser.add_argument("--version", action="version", version=f"flexod {flexo.__version__}")
    return parser


if __name__ == "__main__":
    main()
