"""How people name a job: by Slurm's id, or by YARN's name of its application."""

from __future__ import annotations

import pytest
import typer

from flexo_cli.options import job_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7),
        ("application_1795625206213_0002", 1_795_625_206_213_000_002),
        ("1795625206213000002", 1_795_625_206_213_000_002),
    ],
)
def test_both_names_lead_to_flexos_number(text: str, number: int) -> None:
    assert job_number(text) == number


@pytest.mark.parametrize("text", ["", "0", "-1", "7.r1", "job", "application_7", "²", str(1 << 64)])
def test_what_names_no_job_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no job"):
        job_number(text)
