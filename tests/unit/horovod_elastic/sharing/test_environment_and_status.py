"""Processes learn from their environment how they share a GPU, people from the coordinator's status."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_elastic.sharing import environment, status
from horovod_elastic.sharing.environment import Role, Sharing, WrongVariable
from horovod_elastic.sharing.introduction import Caller, Hello
from horovod_elastic.sharing.pages import GuaranteePage, OpportunisticPage, Page
from horovod_elastic.sharing.shared_gpu import Member as Process
from horovod_elastic.sharing.status import Gpu, Member, NodeStatus, NoStatus


@pytest.mark.parametrize("role", Role)
def test_a_process_reads_what_it_was_started_with(role: Role, tmp_path: Path) -> None:
    given_to = Sharing(role, "h100:0", tmp_path, "bert", tmp_path / "s", frozenset({1000, 7}))
    assert environment.read(environment.for_process(given_to, {})) == given_to


def test_a_process_without_the_variables_shares_nothing() -> None:
    assert environment.read({}) is None


def test_the_layer_comes_first_on_the_path_and_the_rest_of_the_path_stays() -> None:
    added = environment.for_process(Sharing(Role.GUARANTEE, "g0"), {"PYTHONPATH": "/a:/b"})
    first, *others = added["PYTHONPATH"].split(":")
    assert Path(first, "sitecustomize.py").is_file()
    assert others[-2:] == ["/a", "/b"]
    again = environment.for_process(Sharing(Role.GUARANTEE, "g0"), added)
    assert again["PYTHONPATH"] == added["PYTHONPATH"]


def test_short_forms_name_the_role() -> None:
    for made, role in (
        (environment.of_guarantee, "guarantee"),
        (environment.of_opportunistic, "opportunistic"),
    ):
        assert made("g0", Path("/x"), "j")[environment.ROLE] == role


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 65, "-x"])
def test_a_name_that_no_gpu_can_have_is_refused(name: str) -> None:
    with pytest.raises(WrongVariable, match="letters"):
        environment.of_guarantee(name)


@pytest.mark.parametrize("changed", [{environment.ROLE: "king"}, {environment.CONSENT: "me"}])
def test_a_wrong_variable_is_named_with_what_is_allowed(changed: dict[str, str]) -> None:
    with pytest.raises(WrongVariable) as caught:
        environment.read(environment.of_guarantee("g0") | changed)
    assert next(iter(changed)) in str(caught.value)
    assert "allowed" in str(caught.value)


FRACTIONS = st.none() | st.floats(0, 10)
SIZES = st.integers(0, 2**50)
MEMBERS = st.builds(
    Member,
    *(st.sampled_from(Role), st.text(max_size=9), SIZES, SIZES, SIZES, SIZES, SIZES, st.booleans(), SIZES),
)
GPUS = st.builds(
    Gpu,
    *(st.text(max_size=5), st.text(max_size=5), st.booleans(), SIZES, SIZES, st.floats(0, 1)),
    *(st.sampled_from(["closed", "gaps", "open"]), st.text(max_size=9), SIZES, st.none() | MEMBERS),
    *(st.none() | MEMBERS, st.lists(MEMBERS, max_size=3).map(tuple), FRACTIONS, FRACTIONS),
)


@given(
    st.builds(
        NodeStatus, st.text(max_size=9), SIZES, st.floats(0, 1e10), st.lists(GPUS, max_size=3).map(tuple)
    )
)
def test_a_status_is_read_as_it_was_written(told: NodeStatus) -> None:
    assert status.parse(status.content_of(told)) == told


def test_the_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    for second in (1.0, 2.0):
        status.write(NodeStatus("n", 1, second, ()), tmp_path)
    assert status.read(tmp_path).updated_at == 2.0
    assert [each.name for each in tmp_path.iterdir()] == [status.FILE]


def test_without_a_coordinator_the_reason_names_the_file_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoStatus, match="flexo share coordinator") as caught:
        status.read(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(("role", "peak"), [(Role.GUARANTEE, 9 << 30), (Role.OPPORTUNISTIC, 0)])
def test_the_status_has_what_a_guarantee_job_holds_and_the_most_that_it_has_held(
    role: Role, peak: int
) -> None:
    page = Page.make(role.value)
    word = {Role.GUARANTEE: GuaranteePage.MEMORY, Role.OPPORTUNISTIC: OpportunisticPage.MEMORY}[role]
    page.words[word] = 3 << 30
    if role is Role.GUARANTEE:
        page.words[GuaranteePage.PEAK] = 9 << 30
    with socket.socket(socket.AF_UNIX) as connection:
        told = Process(1, connection, Caller(os.getpid(), os.getuid()), Hello("g0", role), page).status()
    assert (told.memory, told.peak) == (3 << 30, peak)


def test_a_coordinator_of_an_earlier_release_tells_no_peak() -> None:
    gpu = Gpu("g", "m", True, 8, 4, 0.5, "gaps", "", 2, Member(Role.GUARANTEE, "17", 1, 1, 9, 3, peak=5))
    told = status.content_of(NodeStatus("n", 1, 1.0, (gpu,)))
    before = told.replace(b'"stale": false,', b'"stale": false').replace(b'"peak": 5', b"")
    read = status.parse(before).gpus[0].guarantee
    assert read is not None
    assert (read.memory, read.peak) == (3, 0)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"version": 2}', b'{"version": 1, "gpus": [3]}', b'{"version": 1, "gpus": 3}'],
)
def test_a_file_that_is_no_status_is_refused(content: bytes) -> None:
    with pytest.raises(NoStatus):
        status.parse(content)
