"""Plans and keys come from whoever connects: every field is checked, and only BadFrame is raised."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod_elastic.aggregation import place
from horovod_elastic.aggregation.frames import BadFrame, Frame, Kind, frame_of, header
from horovod_elastic.aggregation.memory import (
    InputMemory,
    KeyShape,
    ResultMemory,
    carries,
    mask_bytes,
    mask_of,
    ranks_in,
    shape_from_bytes,
    shape_to_bytes,
)
from horovod_elastic.aggregation.place import AggregatorPlace
from horovod_elastic.aggregation.plan import Hello, Plan, PlannedNode, Role, from_bytes, to_bytes

anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    size = draw(st.integers(1, 12))
    owners = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    by_node: dict[int, list[int]] = {}
    for rank, owner in enumerate(owners):
        by_node.setdefault(owner, []).append(rank)
    nodes = [
        PlannedNode(draw(st.text(max_size=3)), tuple(ranks), "h", draw(st.integers(0, 65535)), "t")
        for ranks in by_node.values()
    ]
    return Plan(draw(st.text(max_size=3)), draw(st.integers(0, 2**62)), tuple(nodes), 4096)


@st.composite
def hellos(draw: st.DrawFn) -> Hello:
    plan, role = draw(plans()), draw(st.sampled_from(Role))
    most = plan.size if role is Role.WORKER else len(plan.nodes)
    number, to = draw(st.integers(0, most - 1)), draw(st.integers(0, len(plan.nodes) - 1))
    return Hello(role, number, to, draw(st.text(max_size=5)), plan, draw(st.integers(-1, 100)))


@given(hellos())
def test_a_hello_is_read_as_it_was_written(hello: Hello) -> None:
    assert from_bytes(to_bytes(hello)) == hello
    for rank in range(hello.plan.size):
        assert rank in hello.plan.nodes[hello.plan.node_of(rank)].ranks


def read(data: bytes) -> None:
    try:
        from_bytes(data)
    except BadFrame as error:
        str(error).encode(errors="replace")


@given(st.binary(max_size=200))
def test_bytes_that_are_no_hello_are_a_bad_frame(data: bytes) -> None:
    read(data)
    with contextlib.suppress(BadFrame):
        shape_from_bytes(data)


@given(hellos(), st.data())
def test_a_hello_with_anything_in_a_field_is_read_or_refused(hello: Hello, data: st.DataObject) -> None:
    said = json.loads(to_bytes(hello))
    field = data.draw(st.sampled_from([*said]))
    if data.draw(st.booleans()):
        said[field] = data.draw(anything)
    elif data.draw(st.booleans()):
        del said[field]
    else:
        at = data.draw(st.integers(0, 4))
        said["nodes"][0][at] = data.draw(anything)
    read(json.dumps(said).encode())


@given(anything)
def test_a_key_with_anything_in_it_is_read_or_refused(said: Any) -> None:
    for each in (said, ["name", said, 1], ["name", "float32", said], [said, "float32", 1]):
        try:
            shape = shape_from_bytes(json.dumps(each).encode())
        except BadFrame:
            continue
        assert carries(shape.dtype)
        assert shape.elements > 0


@pytest.mark.parametrize(
    "ranks",
    [
        [[0, 1], [1]],
        [[0], [2]],
        [[1], [0]],
        [[0], []],
        [[1, 0]],
        [[-1, 0]],
        [],
        [[*range(5000)]],
        [["0"]],
        [[0.0]],
    ],
)
def test_a_plan_has_each_rank_once_and_in_order(ranks: list[list[Any]]) -> None:
    hello = Hello(Role.NODE, 0, 0, "t", Plan("17", 1, (PlannedNode("n", (0,)),)))
    said = json.loads(to_bytes(hello))
    said["nodes"] = [["n", each, "h", 1, "t"] for each in ranks]
    with pytest.raises(BadFrame):
        from_bytes(json.dumps(said).encode())


@given(st.sampled_from(Kind), *[st.integers(0, 2**32 - 1)] * 3, st.integers(0, 2**64 - 1))
def test_a_header_is_read_as_it_was_written(kind: Kind, key: int, part: int, number: int, size: int) -> None:
    frame = Frame(kind, key, part, number, size)
    assert frame_of(header(frame)) == frame


def test_a_header_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(BadFrame, match="200"):
        frame_of(b"\xc8" + bytes(23))


@given(
    st.sampled_from(["float64", "float32", "float16", "int64"]),
    st.integers(1, 70_000),
    st.integers(4096, 9000),
)
def test_parts_are_all_of_a_key_and_no_element_is_in_two(dtype: str, elements: int, part_bytes: int) -> None:
    shape = KeyShape("key", dtype, elements)
    slices = [shape.part(number, part_bytes) for number in range(shape.parts(part_bytes))]
    assert slices[0].start == 0
    assert slices[-1].stop == elements
    assert all(one.stop == other.start for one, other in itertools.pairwise(slices))
    assert all(0 < (each.stop - each.start) * shape.item_bytes <= part_bytes for each in slices)
    assert shape_from_bytes(shape_to_bytes(shape)) == shape


@given(st.integers(1, 40), st.data())
def test_a_mask_has_the_ranks_that_were_put_into_it(size: int, data: st.DataObject) -> None:
    ranks = data.draw(st.sets(st.integers(0, size - 1)))
    mask = mask_of(sorted(ranks), size)
    assert len(mask) == mask_bytes(size)
    assert ranks_in(mask) == ranks


# --- memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64", "int32"])
def test_both_ends_of_a_keys_memory_see_the_same(dtype: str) -> None:
    shape = KeyShape("key", dtype, 5000)
    ours = InputMemory(shape)
    theirs = InputMemory(shape, ours.fd)
    ours.numbers[:] = 7
    assert theirs.numbers.tobytes() == ours.view.tobytes() == ours.numbers.tobytes()
    result = ResultMemory(shape, 4096, 9)
    other = ResultMemory(shape, 4096, 9, os.dup(result.fd))
    result.numbers[4999] = 3
    result.is_whole(1, 6, mask_of([0, 8], 9))
    assert other.numbers[4999] == 3
    assert (other.round_of(0), other.round_of(1)) == (0, 6)
    assert ranks_in(other.contributors(1)) == {0, 8}
    assert other.view.nbytes == shape.size
    assert result.numbers.ctypes.data % 64 == 0
    for each in (ours, result, other):
        each.close()


def test_memory_that_is_too_small_for_its_key_is_refused() -> None:
    small, large = KeyShape("key", "float32", 10), KeyShape("key", "float32", 11)
    memory = InputMemory(small)
    with pytest.raises(BadFrame, match="44"):
        InputMemory(large, memory.fd)
    memory.close()


def test_a_key_of_too_many_parts_is_refused_before_anything_is_kept_of_it() -> None:
    with pytest.raises(BadFrame, match="parts"):
        ResultMemory(KeyShape("key", "float64", 1 << 34), 4096, 1)


def test_closing_memory_closes_its_descriptor_once_and_keeps_the_numbers() -> None:
    memory = InputMemory(KeyShape("key", "float32", 10))
    memory.numbers[:] = 1
    fd = memory.fd
    memory.close()
    memory.close()
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)
    assert np.all(memory.numbers == 1)


# --- places -----------------------------------------------------------------------------------------------


def test_a_place_is_read_as_it_was_written_and_by_its_user_only(tmp_path: Path) -> None:
    assert place.read(tmp_path) is None
    there = AggregatorPlace("n1", 7000, place.new_token())
    place.write(tmp_path, there)
    assert place.read(tmp_path) == there
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o077 == 0
    file.write_text('{"host": "n1"}')
    assert place.read(tmp_path) is None
