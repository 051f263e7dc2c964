"""Submits a job to YARN: its base application, whose ApplicationMaster does the rest."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flexo_protos.hadoop import ipc_pb2
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_protos.job_secret import SECRET_BYTES, fingerprint
from flexo_yarn import tags
from flexo_yarn.configuration import ClientConfiguration
from flexo_yarn.credentials import Credentials
from flexo_yarn.ipc.errors import IpcError
from flexo_yarn.kerberos import Kerberos, Tickets
from flexo_yarn.records import ENDED, application_text, gpus, resource
from flexo_yarn.resource_manager import ResourceManager
from horovod_elastic.daemon_address import daemon_address
from horovod_elastic.platforms.base import Refused
from horovod_elastic.platforms.yarn.container_start import SECRET
from horovod_elastic.platforms.yarn.environment import (
    GPU_PLUGIN,
    RESOURCE_MANAGER,
    SCHEDULER,
    USER,
    servers_text,
)
from horovod_elastic.platforms.yarn.files import ARCHIVES, Files, Shipped
from horovod_elastic.platforms.yarn.job_options import JobOptions
from horovod_elastic.platforms.yarn.template import ENVIRONMENT_LINK, Template

MASTER_MIB: Final = 512
"""Memory of the ApplicationMaster's container."""
MASTER: Final = "horovod_elastic.application_master"
FAILURES_COUNT_MS: Final = 600_000
"""How long YARN counts a failure of the ApplicationMaster against its limit of attempts."""
_PASSED_ON = ("FLEXO_TLS_CA", "FLEXO_CONFIG", "FLEXO_LEASE", "FLEXO_SILENCE_S", "FLEXO_TRACE")
"""Variables of the submitting shell that concern the job."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job to be submitted."""

    options: JobOptions
    python_environment: str
    """An archive with `bin/python`, or the folder of an environment that all nodes have."""
    name: str = ""
    files: tuple[Shipped, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """For all processes of the job."""
    tickets: Tickets = field(default_factory=Tickets)
    """Whose job it is, where there is Kerberos."""


def user_of_calls() -> str:
    """The user whom calls without Kerberos name, as Hadoop's own clients choose it."""
    return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()


def connect(cluster: ClientConfiguration, tickets: Tickets) -> ResourceManager:
    """The cluster's ResourceManager, called by Kerberos where the cluster uses it."""
    if cluster.kerberos:
        return ResourceManager(cluster.resource_manager, kerberos=Kerberos(tickets, cluster.principal))
    return ResourceManager(cluster.resource_manager, user=user_of_calls())


def tags_of(options: JobOptions, secret: bytes) -> list[str]:
    """The application's tags, which flexod reads: what the user has declared, and whose the secret is."""
    shape = options.shape
    return [
        f"{tags.KEY}{fingerprint(secret)}",
        f"{tags.WORKER}{shape.gpus},{shape.cpus},{shape.memory_mib}",
        *([f"{tags.ELASTIC}{options.minimum}-{options.maximum}"] if options.declared else []),
        *([f"{tags.BATCH}{options.batch}"] if options.batch else []),
        *([tags.FUNGIBLE] if options.fungible else []),
        *([tags.HETEROGENEOUS] if options.heterogeneous else []),
    ]


def submit(submission: Submission, cluster: ClientConfiguration) -> pb.ApplicationId:
    """Submit a job; return its base application. Raises Refused."""
    client = connect(cluster, submission.tickets)
    try:
        new = client.new_application()
        _check_fits(submission.options, new.maximum_capability)
        tokens = [_delegation_token(client, cluster)] if cluster.kerberos else []
        context = _context(submission, cluster, new.application_id, tokens)
        client.submit(context)
        _wait_until_accepted(client, new.application_id)
    except IpcError as error:
        raise Refused(str(error)) from error
    finally:
        client.close()
    return new.application_id


def wait(
    client: ResourceManager, application: pb.ApplicationId, tell: Callable[[pb.ApplicationReport], None]
) -> pb.ApplicationReport:
    """Wait until an application has ended. `tell` is given its report whenever its state changes."""
    state = None
    while True:
        try:
            report = client.application(application)
        except IpcError:
            time.sleep(2.0)  # the ResourceManager may be restarting
            continue
        if report.state != state:
            state = report.state
            tell(report)
        if state in ENDED:
            return report
        time.sleep(0.5)


def _delegation_token(client: ResourceManager, cluster: ClientConfiguration) -> ipc_pb2.Token:
    """What the job's processes, which have no tickets, call the ResourceManager with. It renews the token.

    Raises IpcError, Refused.
    """
    addresses = [(_ip(host), port) for host, port in cluster.resource_manager]
    token = client.delegation_token(Kerberos(Tickets(), cluster.principal).server(addresses[0][0]))
    # By which the ResourceManager, or each of several, recognizes its own tokens.
    token.service = ",".join(f"{address}:{port}" for address, port in addresses)
    return token


def _ip(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise Refused(f"the ResourceManager's host {host}: {error}") from error


def _context(
    submission: Submission,
    cluster: ClientConfiguration,
    application: pb.ApplicationId,
    tokens: Sequence[ipc_pb2.Token],
) -> pb.ApplicationSubmissionContext:
    options = submission.options
    secret = secrets.token_bytes(SECRET_BYTES)
    files = Files(cluster.default_filesystem, application_text(application), secure=cluster.kerberos)
    python, shipped = _python(submission)
    template = Template.of(
        python,
        [files.resource(each) for each in shipped],
        _variables(submission, cluster),
        Credentials({each.service: each for each in tokens}, {SECRET: secret}),
    )
    return pb.ApplicationSubmissionContext(
        application_id=application,
        name=submission.name or " ".join(options.command)[:60],
        queue=options.queue,
        application_type=tags.APPLICATION_TYPE,
        tags=tags_of(options, secret),
        # A job without a range keeps its lease in the ApplicationMaster, and begins anew without that.
        keep_containers_across_attempts=options.declared,
        attempt_failures_validity_interval=FAILURES_COUNT_MS,
        resource=resource(MASTER_MIB, 1, 0),
        am_container=template.for_master(MASTER, options.to_arguments()),
    )


def _python(submission: Submission) -> tuple[str, list[Shipped]]:
    """Python's path on a node, and all files for the containers."""
    environment, shipped = submission.python_environment, list(submission.files)
    if environment.endswith(ARCHIVES):
        shipped.append(Shipped(environment, ENVIRONMENT_LINK, archive=True))
        return f"{ENVIRONMENT_LINK}/bin/python", shipped
    folder = Path(environment)
    if not folder.is_absolute():
        raise Refused(
            f"--env is '{environment}'; allowed: an archive ({', '.join(ARCHIVES)}) with bin/python in it, "
            "or the absolute path of an environment that all nodes have"
        )
    return str(folder / "bin" / "python"), shipped


def _variables(submission: Submission, cluster: ClientConfiguration) -> dict[str, str]:
    variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    variables |= submission.variables
    if daemon := daemon_address():
        variables.setdefault("FLEXO_DAEMON", daemon)
    variables |= {
        RESOURCE_MANAGER: servers_text(cluster.resource_manager),
        SCHEDULER: servers_text(cluster.scheduler),
        "PYTHONUNBUFFERED": "1",
    }
    if not cluster.kerberos:
        variables[USER] = user_of_calls()
    if cluster.gpu_plugin:
        variables[GPU_PLUGIN] = "1"
    return variables


def _check_fits(options: JobOptions, most: pb.Resource) -> None:
    """Whether the cluster allows such a container at all. Raises Refused."""
    for what, wanted, allowed in (
        ("GPUs", options.shape.gpus, gpus(most)),
        ("CPUs", options.shape.cpus, most.virtual_cores),
        ("MiB of memory", options.shape.memory_mib, most.memory),
    ):
        if wanted > allowed:
            raise Refused(f"a worker takes {wanted} {what}; the cluster's largest container has {allowed}")


def _wait_until_accepted(client: ResourceManager, application: pb.ApplicationId) -> None:
    """Wait until YARN has taken the application into a queue. Raises Refused, IpcError."""
    while True:
        report = client.application(application)
        if report.state in (pb.FAILED, pb.KILLED):
            raise Refused(report.diagnostics.strip() or "YARN has refused the application")
        if report.state not in (pb.NEW, pb.NEW_SAVING, pb.SUBMITTED):
            return
        time.sleep(0.1)
