"""Pages have one writer each, and jobs meet their coordinator over a socket that strangers can reach,
too.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_elastic.sharing import futex, introduction, status
from horovod_elastic.sharing.coordinator import Coordinator
from horovod_elastic.sharing.devices import PretendedDevice
from horovod_elastic.sharing.environment import Role
from horovod_elastic.sharing.introduction import BadMessage, Hello, Kind, NoCoordinator, Told
from horovod_elastic.sharing.pages import RING, GatePage, GuaranteePage, NoPage, Page


def reader_of(page: Page) -> Page:
    return Page.of(os.dup(page.descriptor))


def test_a_page_can_be_written_by_its_maker_only() -> None:
    page = Page.make("test")
    page.words[5] = 7
    assert reader_of(page).words[5] == 7
    again = os.open(f"/proc/self/fd/{page.descriptor}", os.O_RDWR)
    with pytest.raises(PermissionError):
        mmap.mmap(again, 4096)
    with pytest.raises(PermissionError):
        os.pwrite(again, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(again, 0)
    os.close(again)


def test_descriptors_that_are_no_sealed_pages_are_refused_and_closed(tmp_path: Path) -> None:
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 4096)
    short = os.memfd_create("short", os.MFD_ALLOW_SEALING)
    fcntl.fcntl(short, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    foreign = os.memfd_create("foreign", os.MFD_ALLOW_SEALING)
    os.ftruncate(foreign, 4096)
    fcntl.fcntl(foreign, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    plain = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    for descriptor in (unsealed, short, foreign, plain):
        with pytest.raises(NoPage):
            Page.of(descriptor)
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(descriptor)


@given(st.lists(st.integers(0, 10**12), max_size=3 * RING), st.integers(0, 3 * RING))
def test_a_ring_gives_what_came_since_as_far_as_it_has_it(durations: list[int], seen: int) -> None:
    page = GuaranteePage(Page.make("ring"))
    for duration in durations:
        page.cycles.add(duration)
    expected = durations[max(seen, len(durations) - RING) :]
    assert list(page.cycles.since(seen)) == [duration / 1e9 for duration in expected]
    page.page.close()


def test_who_waits_for_a_word_of_a_page_that_it_only_reads_is_woken() -> None:
    page = Page.make("futex")
    reader = reader_of(page)
    page.halves[1] = 1
    threading.Timer(0.1, lambda: (page.halves.__setitem__(1, 0), futex.wake(page.address))).start()
    began = time.monotonic()
    while reader.signal:
        futex.wait(reader.address, 1, 10.0)
    assert time.monotonic() - began < 5.0


def test_a_wait_ends_at_its_time_and_at_once_if_the_word_is_another() -> None:
    page = Page.make("futex")
    began = time.monotonic()
    futex.wait(page.address, 1, 10.0)
    futex.wait(page.address, 0, 0.05)
    assert 0.04 < time.monotonic() - began < 5.0


JOBS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=introduction.LONGEST_JOB)


@given(st.sampled_from(Role), JOBS, st.frozensets(st.integers(0, 2**31), max_size=9))
def test_an_introduction_is_read_as_it_was_said(role: Role, job: str, consent: frozenset[int]) -> None:
    hello = Hello("h100:0", role, job, consent)
    assert introduction.hello_of(hello.encoded()) == hello
    told = Told(Kind.QUEUED, job, 7)
    assert introduction.told_of(told.encoded()) == told


@given(st.binary(max_size=300))
def test_anything_else_is_no_introduction(packet: bytes) -> None:
    with pytest.raises(BadMessage):
        introduction.hello_of(packet)


@pytest.mark.parametrize(
    "packet",
    [
        b'{"kind": "hello", "version": 2, "gpu": "g", "role": "guarantee", "job": "", "consent": []}',
        b'{"kind": "hello", "version": 1, "gpu": "../g", "role": "guarantee", "job": "", "consent": []}',
        b'{"kind": "hello", "version": 1, "gpu": "g", "role": "king", "job": "", "consent": []}',
        b'{"kind": "hello", "version": 1, "gpu": "g", "role": "guarantee", "job": "\\u001b", "consent": []}',
        b'{"kind": "hello", "version": 1, "gpu": "g", "role": "guarantee", "job": "", "consent": ["root"]}',
        b'{"kind": "accepted", "version": 1}',
        b"[" * 2000,
    ],
)
def test_an_introduction_with_something_wrong_is_refused(packet: bytes) -> None:
    with pytest.raises(BadMessage):
        introduction.hello_of(packet)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a coordinator that runs in a thread."""
    coordinator = Coordinator(tmp_path, [PretendedDevice("g0", 8 << 30)])
    thread = threading.Thread(target=coordinator.run)
    thread.start()
    yield tmp_path
    coordinator.end()
    thread.join()
    assert not (tmp_path / introduction.SOCKET).exists()


def introduced(
    folder: Path, role: Role, page: Page | None = None, gpu: str = "g0", **how: object
) -> socket.socket:
    connection = introduction.connect(folder)
    descriptors = [page.descriptor] if page else []
    introduction.send(connection, Hello(gpu, role, "job", **how).encoded(), *descriptors)  # type: ignore[arg-type]
    return connection


def heard(connection: socket.socket) -> tuple[Told, list[int]]:
    packet, descriptors = introduction.receive(connection)
    return introduction.told_of(packet), descriptors


def test_a_job_gets_a_gate_page_and_meets_the_other_job(folder: Path) -> None:
    mine = Page.make("guarantee")
    guarantee = introduced(folder, Role.GUARANTEE, mine)
    told, (descriptor,) = heard(guarantee)
    assert told.kind is Kind.ACCEPTED
    order = GatePage(Page.of(descriptor))
    assert not order.shared
    opportunistic = introduced(folder, Role.OPPORTUNISTIC, Page.make("other"))
    assert heard(opportunistic)[0].kind is Kind.ACCEPTED
    told, (descriptor,) = heard(opportunistic)
    assert (told.kind, told.pid) == (Kind.PEER, os.getpid())
    mine.words[9] = 99
    assert Page.of(descriptor).words[9] == 99
    assert heard(guarantee)[0].kind is Kind.SHARED
    assert order.shared
    opportunistic.close()


@pytest.mark.parametrize(
    "what", ["bytes", "no page", "two pages", "no such gpu", "no sealed page", "too long"]
)
def test_a_stranger_is_refused_and_the_next_caller_is_served(folder: Path, what: str) -> None:
    connection = introduction.connect(folder)
    hello = Hello("g9" if what == "no such gpu" else "g0", Role.GUARANTEE).encoded()
    page = Page.make("stranger").descriptor
    unsealed = os.memfd_create("unsealed")
    sent = {
        "bytes": (b"\xff\x00",),
        "no page": (hello,),
        "two pages": (hello, page, page),
        "no such gpu": (hello, page),
        "no sealed page": (hello, unsealed),
        "too long": (hello + b" " * introduction.MOST_BYTES, page),
    }[what]
    introduction.send(connection, *sent)  # type: ignore[arg-type]
    told, _ = heard(connection)
    assert told.kind is Kind.REFUSED
    assert told.reason
    assert heard(introduced(folder, Role.GUARANTEE, Page.make("next")))[0].kind is Kind.ACCEPTED


def test_one_job_has_the_gpu_and_others_wait_in_their_order(folder: Path) -> None:
    first, second, third = (introduced(folder, Role.OPPORTUNISTIC, Page.make("job")) for _ in range(3))
    assert [heard(each)[0].kind for each in (first, second, third)] == [
        Kind.ACCEPTED,
        Kind.QUEUED,
        Kind.QUEUED,
    ]
    second.close()
    first.close()
    kinds = []
    while Kind.ACCEPTED not in kinds:
        kinds.append(heard(third)[0].kind)


def test_the_status_names_everybody(folder: Path) -> None:
    first = introduced(folder, Role.OPPORTUNISTIC, Page.make("job"))
    second = introduced(folder, Role.OPPORTUNISTIC, Page.make("job"))
    end = time.monotonic() + 30
    while not (folder / status.FILE).exists():
        time.sleep(0.05)
    while not ((gpu := status.read(folder).gpu("g0")) and gpu.opportunistic and gpu.waiting):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert (gpu.opportunistic.pid, gpu.opportunistic.uid) == (os.getpid(), os.getuid())
    first.close()
    second.close()


def test_a_folder_has_one_coordinator(folder: Path) -> None:
    with pytest.raises(NoCoordinator, match=str(folder)):
        introduction.listen(folder)


def test_a_socket_that_a_killed_coordinator_left_is_replaced(tmp_path: Path) -> None:
    introduction.listen(tmp_path).close()
    assert (tmp_path / introduction.SOCKET).exists()
    introduction.listen(tmp_path).close()


def test_a_folder_in_which_everybody_may_write_is_not_trusted(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with introduction.listen(tmp_path), pytest.raises(NoCoordinator, match="every user"):
        introduction.connect(tmp_path)


def test_without_a_coordinator_the_reason_names_the_socket(tmp_path: Path) -> None:
    with pytest.raises(NoCoordinator, match=introduction.SOCKET):
        introduction.connect(tmp_path)
