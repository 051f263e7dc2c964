"""Identifiers as text: Hadoop's own examples, and there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexo_yarn import records

NUMBERS = st.integers(1, 2**31 - 1)


@pytest.mark.parametrize(
    "text",
    [
        "container_1700000000000_0007_01_000003",
        "container_e02_1700000000000_0007_01_000003",
        "container_e123_1700000000000_12345_10_1234567",
    ],
)
def test_a_container_is_named_as_hadoop_names_it(text: str) -> None:
    assert records.container_text(records.read_container(text)) == text


@given(st.integers(1, 2**40), NUMBERS)
def test_an_application_is_named_there_and_back(timestamp: int, number: int) -> None:
    text = f"application_{timestamp}_{number:04d}"
    assert records.application_text(records.read_application(text)) == text


@pytest.mark.parametrize("text", ["", "application_1_2_3", "job_1_2", "container_x_1_2_3_4"])
def test_what_is_no_identifier_is_refused_with_what_is_allowed(text: str) -> None:
    for read in (records.read_application, records.read_container):
        with pytest.raises(ValueError, match="allowed"):
            read(text)


def test_gpus_are_counted_among_other_resources() -> None:
    assert records.gpus(records.resource(1024, 2, 3)) == 3
    assert records.gpus(records.resource(1024, 2, 0)) == 0
