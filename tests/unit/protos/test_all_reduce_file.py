"""The file of all-reduce times comes back as it was written, and a damaged one is refused by name."""

from __future__ import annotations

import json

import pytest
from says import says

from flexo_protos.all_reduce_file import AllReduceTable, BadAllReduceFile, parse

TABLE = AllReduceTable("cpu", (2, 3), (1e4, 1e6), ((0.001, 0.01), (0.002, 0.02)))


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(TABLE.to_text()), **fields})


def test_a_table_comes_back_as_it_was_written() -> None:
    assert parse(TABLE.to_text()) == TABLE


def test_a_file_that_breaks_off_is_refused() -> None:
    with pytest.raises(BadAllReduceFile, match="not JSON"):
        parse(TABLE.to_text()[:-20])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"format": "something else"}, ("format", "flexo all-reduce times")),
        ({"version": 2}, ("version 2", "1 is allowed")),
        ({"backend": "a\nb"}, ("backend",)),
        ({"workers": [3, 2]}, ("workers", "ascend")),
        ({"workers": [1, 2]}, ("workers", "from 2")),
        ({"workers": [2, 2.5]}, ("workers", "whole numbers")),
        ({"workers": [2, True]}, ("workers", "numbers")),
        ({"workers": []}, ("workers", "at least one")),
        ({"weights": ["1e4", 1e6]}, ("weights", "numbers")),
        ({"weights": [1e6, 1e4]}, ("weights", "ascend")),
        ({"seconds": [[0.001, 0.01]]}, ("seconds", "1 rows", "2")),
        ({"seconds": [[0.001, 0.01], [0.002]]}, ("3 workers", "1 numbers", "2")),
        ({"seconds": [[0.001, 0.01], [0.002, 0.0]]}, ("3 workers", "above 0")),
        ({"seconds": [[0.001, 0.01], [0.002, float("nan")]]}, ("3 workers", "numbers")),
        ({"seconds": {}}, ("seconds", "list")),
    ],
)
def test_each_damage_is_named(fields: dict[str, object], named: tuple[str, ...]) -> None:
    with pytest.raises(BadAllReduceFile) as refused:
        parse(changed(**fields))
    assert says(str(refused.value), *named)


@pytest.mark.parametrize("key", ["backend", "workers", "weights", "seconds"])
def test_what_is_lacking_is_named(key: str) -> None:
    fields = json.loads(TABLE.to_text())
    del fields[key]
    with pytest.raises(BadAllReduceFile, match=f"lacks {key}"):
        parse(json.dumps(fields))


@pytest.mark.parametrize("text", ["[]", "null", "7", "[" * 100_000])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(BadAllReduceFile):
        parse(text)
