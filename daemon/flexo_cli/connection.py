"""The client of flexod for the commands: finds flexod, calls it, and explains why it does not answer.

The address is the command's --daemon, else $FLEXO_DAEMON, else [high_availability] hosts or [service] address
in the configuration file, else flexod's default. If there are several addresses, with commas between, the
client asks the active flexod. It reads only those keys: a user's machine need not have a configuration that
flexod would accept.
"""

from __future__ import annotations

import os
import queue
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import grpc

from flexo_protos import flexods, keepalive, tls
from flexo_protos.credentials import (
    METADATA_KEY,
    MUNGE,
    SLURM,
    SOCKET_VARIABLE,
    Authenticator,
    NotAuthentic,
    new_authenticator,
    scheme_of_process,
)
from flexo_protos.v1 import admin_pb2, admin_pb2_grpc

ADDRESS_VARIABLE = "FLEXO_DAEMON"
CONFIG_VARIABLE = "FLEXO_CONFIG"
DEFAULT_CONFIG = Path("/etc/flexo/flexo.toml")
ANSWER_WITHIN_S = 10.0
OWN_WORD_WITHIN_S = 3.0
"""Timeout of `Daemon.own_status`, which asks one flexod for its own status."""

_ANOTHER = f"--daemon or ${ADDRESS_VARIABLE} names another address"
_SERVICE = "/flexo.v1.AdminService/"
CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # do not use a site's web proxy between a cluster's hosts
    ("grpc.max_receive_message_length", 64 << 20),
    # a profile takes minutes: notice when flexod's host vanishes meanwhile
    *keepalive.noticing(quiet_s=20.0, answer_s=10.0),
)
if TYPE_CHECKING:  # _CallFuture exists only in the stubs: grpc's futures are both grpc.Call and grpc.Future
    from grpc import _CallFuture

    _Call = _CallFuture[admin_pb2.GetStatusReply]

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")


class Unreachable(Exception):
    """No flexod answers; the message names the address, its source, and how to set it."""

    @property
    def for_viewers(self) -> str:
        """The message, for people who see that flexod does not answer, and did not choose its address."""
        return str(self)


class NoAnswer(Unreachable):
    """flexod does not answer."""

    def __init__(self, address: Address, why: str, advice: str) -> None:
        """`address`: of one flexod. `advice`: "" or what to do about it, after a semicolon."""
        super().__init__(f"flexod does not answer at {address.target} (from {address.source}): {why}{advice}")
        self._at, self._why = address.target, why

    @property
    def for_viewers(self) -> str:
        """Where, and why: a sentence."""
        return f"No answer at {self._at}: {self._why}."


class Refusal(Exception):
    """flexod refused; the message is flexod's own."""


class NoSuchJob(Refusal):
    """flexod knows no elastic job of this number, or not yet."""


class Busy(Refusal):
    """flexod refused for now: the job is being resized, profiled or checkpointed."""


@dataclass(frozen=True, slots=True)
class Address:
    """flexod's address, or several with commas between, and the setting that it comes from."""

    target: str
    source: str


def find_address(option: str | None) -> Address:
    """The address that a command uses (see above). Raises Unreachable if the configuration is invalid."""
    if option:
        return Address(option, "--daemon")
    if os.environ.get(ADDRESS_VARIABLE):
        return Address(os.environ[ADDRESS_VARIABLE], f"${ADDRESS_VARIABLE}")
    path = Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)
    try:
        with path.open("rb") as file:
            found = flexods.configured(tomllib.load(file))
    except OSError as error:
        return _default_address(f"{path}: {error.strerror or error}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Unreachable(f"no address of flexod: {path} is not TOML: {error}") from error
    except ValueError as error:
        raise Unreachable(f"no address of flexod: {path}: {error}") from error
    if found is None:
        return _default_address(f"{path} has no [service] address")
    return Address(found[0], f"{found[1]} in {path}")


def _default_address(why: str) -> Address:
    return Address(flexods.DEFAULT_ADDRESS, f"the default; {why}")


class Daemon:
    """A client of flexod's AdminService. Its methods raise Unreachable and Refusal."""

    def __init__(self, address: Address, authenticator: Authenticator | None = None) -> None:
        self._source = address.source
        try:
            self._authenticator = authenticator or new_authenticator()
        except (NotAuthentic, ValueError) as error:
            raise Refusal(str(error)) from error
        self._targets = flexods.several(address.target) or (address.target,)
        self._target = self._targets[0]
        """The host that was asked last."""
        try:
            options = flexods.options_for(self._targets, CHANNEL_OPTIONS)
            channels = {target: tls.channel(target, options) for target in self._targets}
        except tls.AuthorityUnusable as error:
            raise Unreachable(f"flexod at {address.target} is to be called over TLS, but {error}") from error
        self._stubs = {
            target: admin_pb2_grpc.AdminServiceStub(channel) for target, channel in channels.items()
        }
        self._active = self._stubs[self._target] if len(self._targets) == 1 else None

    @property
    def _stub(self) -> admin_pb2_grpc.AdminServiceStub:
        """The stub of the active flexod. Raises Unreachable."""
        if self._active is None:
            self._active = self._find()
        return self._active

    def _find(self) -> admin_pb2_grpc.AdminServiceStub:
        """Find the active flexod by asking all at once, so that a host that is off delays nothing."""
        answers: queue.SimpleQueue[tuple[str, _Call]] = queue.SimpleQueue()
        for target, stub in self._stubs.items():
            with self._explained():
                proof = self._proof("GetStatus")
            call = stub.GetStatus.future(
                admin_pb2.GetStatusRequest(), timeout=ANSWER_WITHIN_S, metadata=proof
            )
            call.add_done_callback(partial(_put, answers, target))
        troubles = {}
        for _ in self._stubs:
            self._target, call = answers.get()
            try:
                with self._explained():
                    reply = call.result()
            except Unreachable as error:
                troubles[self._target] = str(error)
                continue
            if not reply.HasField("availability") or reply.availability.active:
                return self._stubs[self._target]
            trouble = reply.availability.trouble
            troubles[self._target] = f"flexod at {self._target} stands by{f' ({trouble})' if trouble else ''}"
        each = "; ".join(troubles[target] for target in self._targets)
        raise Unreachable(f"no flexod is active: {each}; {_ANOTHER}")

    def status(self) -> admin_pb2.GetStatusReply:
        """The status of the active flexod."""
        reply = self._call("GetStatus", self._stub.GetStatus, admin_pb2.GetStatusRequest())
        if reply.HasField("availability") and not reply.availability.active:
            active = reply.availability.holder
            raise Unreachable(
                f"flexod at {self._target} stands by;"
                f" {f'the one at {active} is active' if active else 'none is active at present'}"
            )
        return reply

    def own_status(self) -> admin_pb2.GetStatusReply:
        """The status of the flexod at the first address, whether that flexod is active or stands by."""
        stub = self._stubs[self._targets[0]]
        with self._explained():
            proof = self._proof("GetStatus")
            return stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=OWN_WORD_WITHIN_S, metadata=proof)

    def jobs(self) -> admin_pb2.ListJobsReply:
        """All elastic jobs."""
        return self._call("ListJobs", self._stub.ListJobs, admin_pb2.ListJobsRequest())

    def running_job(self, job_id: int) -> admin_pb2.ElasticJob | None:
        """The job, if it runs and is elastic."""
        return next((each for each in self.jobs().jobs if each.job_id == job_id), None)

    def explain(self, job_id: int) -> admin_pb2.ExplainJobReply:
        """The reasons for a job's workers, and the job's events."""
        return self._call("ExplainJob", self._stub.ExplainJob, admin_pb2.ExplainJobRequest(job_id=job_id))

    def loans(self, past: int) -> admin_pb2.ListLoansReply:
        """Servers on loan, and the last `past` loans that are over."""
        return self._call("ListLoans", self._stub.ListLoans, admin_pb2.ListLoansRequest(past=past))

    def demand(self, since_at: float, step_s: float) -> admin_pb2.ListDemandReply:
        """The demand of the inference cluster since `since_at`: the highest value in each `step_s`."""
        request = admin_pb2.ListDemandRequest(since_at=since_at, step_s=step_s)
        return self._call("ListDemand", self._stub.ListDemand, request)

    def events(self, request: admin_pb2.ListEventsRequest) -> admin_pb2.ListEventsReply:
        """Entries of the event store. One reply covers only a part of a long event store."""
        return self._call("ListEvents", self._stub.ListEvents, request)

    def nodes(self) -> admin_pb2.ListNodesReply:
        """The cluster's nodes at flexod's last poll."""
        return self._call("ListNodes", self._stub.ListNodes, admin_pb2.ListNodesRequest())

    def scale(self, job_id: int, workers: int) -> admin_pb2.ScaleJobReply:
        """Cap a job at `workers`; 0 removes the cap."""
        request = admin_pb2.ScaleJobRequest(job_id=job_id, workers=workers)
        return self._call("ScaleJob", self._stub.ScaleJob, request)

    def scale_viewers_job(self, job_id: int, workers: int, viewer_uid: int) -> admin_pb2.ScaleJobReply:
        """`scale` for somebody who looks at flexo-web's pages. flexod believes accounts in [service]
        web_steering alone."""
        request = admin_pb2.ScaleViewersJobRequest(job_id=job_id, workers=workers, viewer_uid=viewer_uid)
        return self._call("ScaleViewersJob", self._stub.ScaleViewersJob, request)

    def scale_out(self, job_id: int, workers: int, nodes: Sequence[str] = ()) -> admin_pb2.ScaleJobReply:
        """Give a job `workers` more workers; with `nodes`, on these only. Raises Refusal if flexod is older
        and does not know nodes: it has then let the job grow anywhere."""
        request = admin_pb2.ScaleOutRequest(job_id=job_id, workers=workers, nodes=nodes)
        reply = self._call("ScaleOut", self._stub.ScaleOut, request)
        if nodes and not reply.nodes:
            raise Refusal(
                f"this flexod is an older one, which does not know nodes for growth ({', '.join(nodes)}): the"
                f" job grows on any node now, and `flexo scale {job_id} -{workers}` undoes it"
            )
        return reply

    def scale_in(self, job_id: int, workers: int, nodes: Sequence[str] = ()) -> admin_pb2.ScaleJobReply:
        """Take `workers` workers from a job, or the satellites on `nodes`."""
        first, more = next(iter(nodes), ""), nodes[1:]  # an older flexod knows one node
        request = admin_pb2.ScaleInRequest(job_id=job_id, workers=workers, node=first, nodes=more)
        return self._call("ScaleIn", self._stub.ScaleIn, request)

    def profile(self, job_id: int, low: int, high: int, batches: int) -> Iterator[admin_pb2.ProfileJobReply]:
        """Measure each size from `low` to `high`; the last reply is `done`. There is no time limit."""
        request = admin_pb2.ProfileJobRequest(job_id=job_id, min=low, max=high, batches=batches)
        with self._explained():
            yield from self._stub.ProfileJob(request, metadata=self._proof("ProfileJob"))

    def checkpoint(self, job_id: int, path: str) -> admin_pb2.CheckpointJobReply:
        """Have the job write its state to `path` at its next step boundary. Returns when that is done."""
        request = admin_pb2.CheckpointJobRequest(job_id=job_id, path=path)
        with self._explained():
            return self._stub.CheckpointJob(request, metadata=self._proof("CheckpointJob"))

    def _call(self, method: str, call: Callable[..., _Reply], request: object) -> _Reply:
        with self._explained():
            return call(request, timeout=ANSWER_WITHIN_S, metadata=self._proof(method))

    def _proof(self, method: str) -> tuple[tuple[str, str], ...]:
        return ((METADATA_KEY, self._authenticator.credential(_SERVICE + method)),)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except NotAuthentic as error:
            raise Refusal(f"{error}{_remedy()}") from error
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or ""
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                self._active = self._active if len(self._targets) == 1 else None
                with_tls = tls.what_is_wrong(self._target)
                # of several flexods the advice is said once
                advice = f"; {_ANOTHER}" if len(self._targets) == 1 and not with_tls else ""
                why = with_tls or _reason(code, details)
                raise NoAnswer(Address(self._target, self._source), why, advice) from error
            if code is grpc.StatusCode.UNIMPLEMENTED:
                raise Unreachable(
                    f"what answers at {self._target} (from {self._source}) is not this flexod"
                ) from error
            if code is grpc.StatusCode.NOT_FOUND:
                raise NoSuchJob(details) from error
            if code is grpc.StatusCode.ABORTED:
                raise Busy(details) from error
            raise Refusal(details or code.name) from error


def _remedy() -> str:
    """What to do without a credential; "" for schemes inside jobs."""
    scheme = scheme_of_process()
    if scheme == SLURM:
        return ". flexo proves with Slurm's sack who you are: call flexo where slurmd or sackd runs"
    if scheme != MUNGE:
        return ""
    do = (
        "flexo proves with MUNGE who you are: call flexo on a host of the cluster where munged runs, or start"
        f" munged here; ${SOCKET_VARIABLE} names its socket where that is not MUNGE's default"
    )
    return f". {do}. For a lab on this machine: flexo lab shell"


def _put(answers: queue.SimpleQueue[tuple[str, _Call]], target: str, call: _Call) -> None:
    answers.put((target, call))


def _reason(code: grpc.StatusCode, details: str) -> str:
    """gRPC's message about a failed connection, reduced to its last cause."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer in time"
    return (
        details.rpartition("; last error: ")[2].removeprefix("UNKNOWN: ").removeprefix("UNAVAILABLE: ")
        or code.name
    )
