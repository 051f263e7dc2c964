"""The one type for amounts: GPUs by type and share, other devices, CPUs, memory."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexo_protos.resources import (
    BadAmount,
    Devices,
    Resources,
    amount,
    as_number,
    of_message,
    to_message,
)
from flexo_protos.v1 import jobs_pb2

HALF = Fraction(1, 2)

amounts = st.one_of(st.integers(0, 16), st.fractions(0, 4, max_denominator=12))
shares = st.one_of(st.integers(1, 4), st.fractions(Fraction(1, 12), 4, max_denominator=12))
kinds = st.sampled_from([("spare", "s0"), ("spare", "s1"), ("nic", "")])


@st.composite
def resources(draw: st.DrawFn, gpus=amounts) -> Resources:
    devices = draw(st.dictionaries(kinds, shares, max_size=3))
    return Resources(
        draw(gpus),
        draw(st.integers(0, 64)),
        draw(st.integers(0, 1 << 20)),
        draw(st.sampled_from(["", "h100"])),
        tuple(Devices(name, kind, many) for (name, kind), many in sorted(devices.items())),
    )


@given(resources())
def test_what_is_sent_is_what_arrives(some: Resources) -> None:
    raw = to_message(some).SerializeToString()
    assert of_message(jobs_pb2.Resources.FromString(raw)) == some


@given(resources(), resources(), st.integers(1, 9))
def test_as_many_units_as_fit_can_be_taken_and_not_one_more(
    some: Resources, unit: Resources, most: int
) -> None:
    some = some.of_any_type() + Resources(gpu_type=unit.gpu_type)
    times = some.holds(unit)
    if times <= most:
        assert some.minus(unit * times).holds(unit) == 0
        assert (unit * times).holds(unit) >= times
    assert (some + unit).holds(unit) >= min(times + 1, 1 << 30)


@given(resources(), resources())
def test_what_was_added_can_be_taken_away_again(some: Resources, other: Resources) -> None:
    assert (some + other).minus(other).holds(some.of_any_type()) >= 1


def test_half_a_gpu_fits_twice_into_one() -> None:
    worker = Resources(HALF, 1)
    assert Resources(1, 8).holds(worker) == 2
    assert Resources(1, 8).minus(worker).holds(worker) == 1
    assert Resources(3, 1).holds(worker) == 1


def test_gpus_of_another_type_hold_nothing_that_names_one() -> None:
    assert Resources(4, 8, gpu_type="v100").holds(Resources(1, 1, gpu_type="h100")) == 0
    assert Resources(4, 8, gpu_type="h100").holds(Resources(1, 1, gpu_type="h100")) == 4
    assert Resources(4, 8, gpu_type="h100").holds(Resources(1, 1)) == 4


def test_a_second_resource_on_the_same_gpu_is_counted_by_its_name_and_type() -> None:
    node = Resources(2, 8, devices=(Devices("spare", "s0"), Devices("spare", "s1")))
    assert node.holds(Resources(cpus=1, devices=(Devices("spare", "s1"),))) == 1
    assert node.holds(Resources(cpus=1, devices=(Devices("spare"),))) == 2
    left = node.minus(Resources(cpus=1, devices=(Devices("spare", "s1"),)))
    assert left.holds(Resources(cpus=1, devices=(Devices("spare", "s1"),))) == 0
    assert left.holds(Resources(cpus=1, devices=(Devices("spare"),))) == 1


def test_parts_are_whole_gpus_unless_what_is_parted_is_a_share() -> None:
    assert Resources(3, 5, 1001).share(2) == Resources(2, 3, 501)
    assert Resources(HALF, 1).share(2).gpus == Fraction(1, 4)
    assert Resources(5).gpus_of_each(2) == 2
    assert Resources(HALF).gpus_of_each(2) == Fraction(1, 4)


def test_amounts_are_written_as_people_write_them() -> None:
    assert [as_number(each) for each in (3, HALF, Fraction(4, 2))] == [3, 0.5, 2]
    assert [amount(text) for text in ("3", "1/2", "4/2", 7)] == [3, HALF, 2, 7]
    with pytest.raises(ValueError, match="many"):
        amount("many")


@pytest.mark.parametrize(
    "devices",
    [[("nic", "", 1), ("nic", "", 1)], [("", "s0", 1)], [("nic", "", 0)]],
)
def test_devices_that_are_named_twice_or_not_at_all_are_refused(devices: list[tuple[str, str, int]]) -> None:
    said = [jobs_pb2.Devices(name=name, type=kind, count=count) for name, kind, count in devices]
    with pytest.raises(BadAmount):
        of_message(jobs_pb2.Resources(devices=said))
