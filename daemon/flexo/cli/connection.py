"""How the commands find flexod and talk to it, and what they say when it does not answer.

The address is the command's --daemon, else $FLEXO_DAEMON, else [service] address in the configuration file,
else flexod's default.
Only that one key is read here: a user's machine need not have a configuration that flexod would accept.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc

from flexo_protos.credentials import METADATA_KEY, Authenticator, Munge, NotAuthentic
from flexo_protos.v1 import admin_pb2, admin_pb2_grpc

ADDRESS_VARIABLE = "FLEXO_DAEMON"
CONFIG_VARIABLE = "FLEXO_CONFIG"
DEFAULT_CONFIG = Path("/etc/flexo/flexo.toml")
ANSWER_WITHIN_S = 10.0

_SERVICE = "/flexo.v1.AdminService/"
_CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a site's web proxy has no business between a cluster's hosts
    ("grpc.max_receive_message_length", 64 << 20),
    # a profile takes minutes: a daemon host that vanishes meanwhile is noticed
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")


class Unreachable(Exception):
    """No flexod answers; the message names the address, where it came from, and how to set it."""


class Refusal(Exception):
    """flexod answered no; the message is its own."""


class Busy(Refusal):
    """flexod says to come again later: the job is being resized, profiled or checkpointed."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where flexod listens, and who said so."""

    target: str
    source: str


def find_address(option: str | None) -> Address:
    """The address that a command uses (see above). Raises Unreachable when the file cannot be understood."""
    if option:
        return Address(option, "--daemon")
    if os.environ.get(ADDRESS_VARIABLE):
        return Address(os.environ[ADDRESS_VARIABLE], f"${ADDRESS_VARIABLE}")
    path = Path(os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG)
    try:
        with path.open("rb") as file:
            service = tomllib.load(file).get("service", {})
    except OSError as error:
        return _default_address(f"{path}: {error.strerror or error}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Unreachable(f"no address of flexod: {path} is not TOML: {error}") from error
    if not isinstance(service, dict) or "address" not in service:
        return _default_address(f"{path} has no [service] address")
    if not isinstance(service["address"], str):
        raise Unreachable(f'no address of flexod: [service] address in {path} is not a text "HOST:PORT"')
    return Address(service["address"], f"[service] address in {path}")


def _default_address(why: str) -> Address:
    from flexo.config import DEFAULT_ADDRESS  # here, because it takes a tenth of a second

    return Address(DEFAULT_ADDRESS, f"the default; {why}")


class Daemon:
    """flexod as an administrator's or user's client sees it. Raises Unreachable and Refusal."""

    def __init__(self, address: Address, authenticator: Authenticator | None = None) -> None:
        self._address = address
        self._authenticator = authenticator or Munge()
        self._stub = admin_pb2_grpc.AdminServiceStub(grpc.insecure_channel(address.target, _CHANNEL_OPTIONS))

    def status(self) -> admin_pb2.GetStatusReply:
        """What flexod does and sees at large."""
        return self._call("GetStatus", self._stub.GetStatus, admin_pb2.GetStatusRequest())

    def jobs(self) -> admin_pb2.ListJobsReply:
        """All elastic jobs."""
        return self._call("ListJobs", self._stub.ListJobs, admin_pb2.ListJobsRequest())

    def explain(self, job_id: int) -> admin_pb2.ExplainJobReply:
        """Why a job has what it has, and what happened to it."""
        return self._call("ExplainJob", self._stub.ExplainJob, admin_pb2.ExplainJobRequest(job_id=job_id))

    def loans(self, past: int) -> admin_pb2.ListLoansReply:
        """Servers on loan, and the last `past` loans that are over."""
        return self._call("ListLoans", self._stub.ListLoans, admin_pb2.ListLoansRequest(past=past))

    def demand(self, since_at: float, step_s: float) -> admin_pb2.ListDemandReply:
        """What the inference cluster needed: the highest of each `step_s`."""
        request = admin_pb2.ListDemandRequest(since_at=since_at, step_s=step_s)
        return self._call("ListDemand", self._stub.ListDemand, request)

    def scale(self, job_id: int, workers: int) -> admin_pb2.ScaleJobReply:
        """Cap a job at `workers`; 0: back to automatic."""
        request = admin_pb2.ScaleJobRequest(job_id=job_id, workers=workers)
        return self._call("ScaleJob", self._stub.ScaleJob, request)

    def scale_out(self, job_id: int, workers: int) -> admin_pb2.ScaleJobReply:
        """So many workers more."""
        request = admin_pb2.ScaleOutRequest(job_id=job_id, workers=workers)
        return self._call("ScaleOut", self._stub.ScaleOut, request)

    def scale_in(self, job_id: int, workers: int, node: str = "") -> admin_pb2.ScaleJobReply:
        """So many workers fewer, or without the satellite on `node`."""
        request = admin_pb2.ScaleInRequest(job_id=job_id, workers=workers, node=node)
        return self._call("ScaleIn", self._stub.ScaleIn, request)

    def profile(self, job_id: int, low: int, high: int, batches: int) -> Iterator[admin_pb2.ProfileJobReply]:
        """Measure each size from `low` to `high`; the last reply is `done`. Takes as long as it takes."""
        request = admin_pb2.ProfileJobRequest(job_id=job_id, min=low, max=high, batches=batches)
        with self._explained():
            yield from self._stub.ProfileJob(request, metadata=self._proof("ProfileJob"))

    def checkpoint(self, job_id: int, path: str) -> admin_pb2.CheckpointJobReply:
        """Have the job's state written to `path`. Takes until the next mini-batch boundary and the disk are
        done.
        """
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
            raise Refusal(str(error)) from error
        except grpc.RpcError as error:
            code, details = error.code(), error.details() or ""
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise Unreachable(
                    f"flexod does not answer at {self._address.target} (from {self._address.source}):"
                    f" {_reason(code, details)}; --daemon or ${ADDRESS_VARIABLE} names another address"
                ) from error
            if code is grpc.StatusCode.UNIMPLEMENTED:
                raise Unreachable(
                    f"what answers at {self._address.target} (from {self._address.source}) is not this flexod"
                ) from error
            if code is grpc.StatusCode.ABORTED:
                raise Busy(details) from error
            raise Refusal(details or code.name) from error


def _reason(code: grpc.StatusCode, details: str) -> str:
    """gRPC's story of a failed connection, shortened to what a person can use."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {ANSWER_WITHIN_S:.0f} s"
    return (
        details.rpartition("; last error: ")[2].removeprefix("UNKNOWN: ").removeprefix("UNAVAILABLE: ")
        or code.name
    )
