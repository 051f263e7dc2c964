"""TLS between flexod and its callers: what is refused, what is said about it, and renewal."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from certificates import MadeAuthority, Pair
from loop_in_thread import LoopThread
from says import says
from service_doubles import Observed, cluster, slurm_job

from flexo.availability.leadership_guard import ALONE
from flexo.config import ConfigError, TlsSettings, parse
from flexo.service.admin_service import AdminService
from flexo.service.inference_service import InferenceService
from flexo.service.jobs_service import JobService, ServiceTimeouts
from flexo.service.leader_registry import LeaderRegistry
from flexo.service.server import ServiceRouter, all_services, listen
from flexo.service.tls import CertificateUnusable, server_credentials
from flexo_cli.connection import Address, Daemon, Refusal, Unreachable
from flexo_protos import tls
from flexo_protos.credentials import Caller
from flexo_protos.lease_place import Kind, LeasePlace
from flexo_protos.v1 import jobs_pb2
from horovod_elastic.election.lease_client import JobRun
from horovod_elastic.election.lease_grpc import GrpcLease
from horovod_elastic.leader import daemon_link
from horovod_elastic.leader.daemon_link import DaemonLink

BOUND_S = 30.0


class Trusting:
    """MUNGE's place: everybody is user 1000."""

    def credential(self, method: str) -> str:
        return "1000"

    def verify(self, credential: str, method: str) -> Caller:
        return Caller(1000, 1000)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> MadeAuthority:
    if not shutil.which("openssl"):
        pytest.skip("needs the openssl command")
    return MadeAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: MadeAuthority) -> Pair:
    return authority.sign("flexod")


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXO_CONFIG", "/nowhere")
    monkeypatch.delenv(tls.VARIABLE, raising=False)


def settings_of(pair: Pair, authority: MadeAuthority) -> TlsSettings:
    return TlsSettings(certificate=pair.certificate, key=pair.key, ca=authority.file)


@contextmanager
def flexod(credentials: grpc.ServerCredentials | None) -> Iterator[str]:
    """flexod's own server, with job 7 of user 1000; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"

    async def start() -> tuple[grpc.aio.Server, JobService]:
        jobs = JobService(LeaderRegistry(), Observed(cluster(slurm_job())), ServiceTimeouts())
        admin = AdminService(None, None, LeaderRegistry(), ())  # type: ignore[arg-type]
        inference = InferenceService(None, frozenset(), lambda: None)
        router = ServiceRouter()
        router.activate(all_services(jobs, admin, inference), ALONE)
        return await listen(address, Trusting(), router, credentials), jobs

    with LoopThread() as loop:
        server, jobs = loop.do(start())
        try:
            yield address
        finally:
            loop.do(_end(server, jobs))


async def _end(server: grpc.aio.Server, jobs: JobService) -> None:
    jobs.close()
    await asyncio.wait_for(server.stop(None), BOUND_S)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def told(address: str) -> str:
    """What the flexo command says of a flexod that it cannot call; what a flexod that it can says itself."""
    with pytest.raises((Unreachable, Refusal)) as caught:
        Daemon(Address(address, "a test"), Trusting()).scale(9, 2)
    return str(caught.value)


@pytest.fixture
def said_by_leader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[str]]]:
    """Dials as a leader of job 7 does; what it tells its user."""
    monkeypatch.setattr(daemon_link, "new_authenticator", Trusting)
    monkeypatch.setattr(daemon_link, "FIRST_RETRY_S", 0.1)
    links: list[DaemonLink] = []

    def dial(address: str) -> list[str]:
        said: list[str] = []
        hello = jobs_pb2.Hello(
            job_id=7,
            workers=jobs_pb2.WorkerRange(min=2, max=8),
            shape=jobs_pb2.WorkerShape(gpus=1, cpus=1),
            base_nodes=["n1"],
        )
        links.append(DaemonLink(address, lambda: hello, lambda _: None, lambda _: None, said.append))
        links[-1].start()
        wait_until(lambda: said)
        return said

    yield dial
    for link in links:
        link.hang_up()


@pytest.mark.processes
def test_leaders_leases_and_people_reach_a_flexod_that_speaks_tls(
    authority: MadeAuthority,
    pair: Pair,
    said_by_leader: Callable[[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(tls.VARIABLE, str(authority.file))
    with flexod(server_credentials(settings_of(pair, authority), "127.0.0.1:1")) as address:
        assert said_by_leader(address)[0].startswith("attached to flexod")
        store = GrpcLease(LeasePlace(Kind.FLEXOD, (address,)), JobRun("7", 0), Trusting())
        assert store.look().vacant
        store.close()
        assert "flexod does not answer" not in told(address)


def test_the_authority_is_found_in_the_configuration(
    tmp_path: Path, authority: MadeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = tmp_path / "flexo.toml"
    toml.write_text(f'[tls]\nca = "{authority.file}"\n')
    monkeypatch.setenv("FLEXO_CONFIG", str(toml))
    assert tls.authority() == tls.Authority(authority.file, f"[tls] ca in {toml}")
    monkeypatch.setenv(tls.VARIABLE, "")
    assert tls.authority() is None, "the variable comes first, and empty it says: in the clear"


def test_a_caller_in_the_clear_is_told_that_flexod_speaks_tls(
    authority: MadeAuthority, pair: Pair, said_by_leader: Callable[[str], list[str]]
) -> None:
    with flexod(server_credentials(settings_of(pair, authority), "127.0.0.1:1")) as address:
        text = told(address)
        assert all(fact in text for fact in ("speaks TLS", "[tls] ca", "$FLEXO_TLS_CA"))
        assert "it speaks TLS" in said_by_leader(address)[0]


def test_a_caller_over_tls_is_told_that_flexod_does_not_speak_it(
    authority: MadeAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tls.VARIABLE, str(authority.file))
    with flexod(None) as address:
        text = told(address)
    assert all(fact in text for fact in ("does not speak TLS", "$FLEXO_TLS_CA"))


@pytest.mark.processes
def test_a_caller_believes_its_own_authority_only(
    authority: MadeAuthority, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tls.VARIABLE, str(MadeAuthority(tmp_path, "another").file))
    with flexod(server_credentials(settings_of(pair, authority), "127.0.0.1:1")) as address:
        assert "certificate is not believed" in told(address)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"no certificate"])
def test_an_authority_that_cannot_be_read_is_named(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv(tls.VARIABLE, str(file))
    assert str(file) in told("127.0.0.1:1")


def test_nobody_there_is_not_blamed_on_tls(authority: MadeAuthority, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tls.what_is_wrong("127.0.0.1:1") == ""
    monkeypatch.setenv(tls.VARIABLE, str(authority.file))
    assert tls.what_is_wrong("127.0.0.1:1") == ""
    assert tls.what_is_wrong("nobody.invalid:1") == ""
    assert tls.what_is_wrong("dns:///nobody") == ""


def why_not(settings: TlsSettings, address: str = "127.0.0.1:6836") -> str:
    """Why flexod does not start with that."""
    with pytest.raises(CertificateUnusable) as caught:
        server_credentials(settings, address)
    return str(caught.value)


def test_flexod_refuses_a_certificate_for_another_name(authority: MadeAuthority, pair: Pair) -> None:
    why = why_not(settings_of(pair, authority), "ctl1:6836")
    assert str(pair.certificate) in why
    assert "not valid for 'ctl1'" in why
    server_credentials(settings_of(pair, authority), "0.0.0.0:6836")  # whatever callers dial


@pytest.mark.processes
def test_flexod_refuses_a_certificate_that_has_expired(authority: MadeAuthority) -> None:
    assert "certificate has expired" in why_not(settings_of(authority.sign("old", days=-1), authority))


@pytest.mark.processes
def test_flexod_refuses_a_certificate_of_another_authority(
    authority: MadeAuthority, pair: Pair, tmp_path: Path
) -> None:
    another = MadeAuthority(tmp_path, "another")
    assert str(another.file) in why_not(settings_of(pair, another))


@pytest.mark.processes
def test_flexod_refuses_a_key_that_does_not_fit(authority: MadeAuthority, pair: Pair) -> None:
    mixed = Pair(pair.certificate, authority.sign("other").key)
    assert "KEY_VALUES_MISMATCH" in why_not(settings_of(mixed, authority))


def test_flexod_refuses_files_that_are_not_there_or_hold_something_else(
    authority: MadeAuthority, pair: Pair, tmp_path: Path
) -> None:
    nothing = tmp_path / "none.pem"
    assert f"{nothing} cannot be read" in why_not(settings_of(Pair(nothing, pair.key), authority))
    assert f"{nothing} cannot be read" in why_not(settings_of(Pair(pair.certificate, nothing), authority))
    nothing.write_text("no key")
    nothing.chmod(0o600)
    why = why_not(settings_of(Pair(pair.certificate, nothing), authority))
    assert says(why, pair.certificate, nothing, "PEM")
    assert "holds no certificates" in why_not(
        TlsSettings(certificate=pair.certificate, key=pair.key, ca=nothing)
    )


@pytest.mark.processes
@pytest.mark.parametrize("mode", [0o604, 0o640, 0o660, 0o622])
def test_flexod_refuses_a_key_that_others_can_read_or_write(
    mode: int, authority: MadeAuthority, pair: Pair, tmp_path: Path
) -> None:
    key = tmp_path / "flexod.key"
    shutil.copy(pair.key, key)
    key.chmod(mode)
    why = why_not(settings_of(Pair(pair.certificate, key), authority))
    assert f"chmod 600 {key}" in why


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_roots_key_may_be_read_by_flexods_group(
    authority: MadeAuthority, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "flexod.key"
    shutil.copy(pair.key, key)
    key.chmod(0o640)
    monkeypatch.setattr(os, "geteuid", lambda: 61_000)
    assert server_credentials(settings_of(Pair(pair.certificate, key), authority), "127.0.0.1:1") is not None


@pytest.mark.processes
def test_a_renewed_certificate_is_used_for_the_next_connection_and_a_bad_one_is_not(
    authority: MadeAuthority, tmp_path: Path
) -> None:
    live = Pair(tmp_path / "flexod.pem", tmp_path / "flexod.key")
    first, second = authority.sign("first"), authority.sign("second")

    def put(pair: Pair) -> None:
        shutil.copy(pair.certificate, live.certificate)
        shutil.copy(pair.key, live.key)

    def shown(address: str) -> str:
        host, _, port = address.rpartition(":")
        return ssl_certificate(host, int(port), authority.file)

    put(first)
    with flexod(server_credentials(settings_of(live, authority), "127.0.0.1:1")) as address:
        assert shown(address) == "first"
        put(second)
        assert shown(address) == "second"
        put(authority.sign("third", hosts="DNS:elsewhere"))
        assert shown(address) == "second", "callers would not believe the third"
        live.certificate.unlink()
        assert shown(address) == "second"


def ssl_certificate(host: str, port: int, ca: Path) -> str:
    """The common name that a server proves."""
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, port), BOUND_S) as connection,
        context.wrap_socket(connection, server_hostname=host) as secured,
    ):
        found = secured.getpeercert() or {}
    ((name,),) = (part for part in found["subject"] if part[0][0] == "commonName")  # type: ignore[union-attr]
    return str(name[1])


@pytest.mark.parametrize(
    "text",
    [
        '[tls]\ncertificate = "/c"\n',
        '[tls]\ncertificate = "/c"\nkey = "/k"\n',
        '[tls]\nkey = "/k"\nca = "/a"\n',
        '[tls]\nca = "relative"\n',
    ],
)
def test_two_of_the_three_lines_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\[tls\]"):
        parse(text, "flexo.toml")


def test_a_host_of_callers_needs_the_authority_alone_and_flexod_more() -> None:
    settings = parse('[tls]\nca = "/etc/flexo/ca.pem"\n', "flexo.toml")
    assert "needs certificate and key" in why_not(settings.tls)


def test_without_the_three_lines_flexod_speaks_in_the_clear() -> None:
    assert server_credentials(TlsSettings(), "127.0.0.1:1") is None
