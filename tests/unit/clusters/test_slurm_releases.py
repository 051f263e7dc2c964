"""Slurm's releases, as what they print of themselves says."""

from __future__ import annotations

import pytest
from captured_outputs import RELEASES, captured

from flexo.clusters.slurm.parse_config import parse_traits
from flexo.clusters.slurm.releases import TESTED, Release


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("slurm-wlm 22.05.8\n", Release(22, 5)),
        ("slurm 24.11.5-1", Release(24, 11)),
        ("26.05.5", Release(26, 5)),
        ("26.05.0rc1", Release(26, 5)),
        ("26.11.0-0pre1", Release(26, 11)),
        ("", None),
        ("slurm-wlm", None),
        ("1.22.05", None),
    ],
)
def test_a_release_is_found_in_what_slurm_says(text: str, release: Release | None) -> None:
    assert Release.found_in(text) == release


def test_releases_are_in_order_and_print_as_slurm_prints_them() -> None:
    assert list(TESTED) == sorted(TESTED)
    assert [str(release) for release in TESTED] == ["22.05", "24.11", "26.05"]


def test_what_each_tested_release_prints_is_kept_here_and_names_that_release() -> None:
    assert tuple(map(str, TESTED)) == RELEASES
    for release in TESTED:
        traits = parse_traits(captured(str(release), "config"), captured(str(release), "sdiag"))
        assert Release.found_in(traits.version) == release


def test_only_later_releases_are_told_that_there_are_no_cgroups() -> None:
    assert [release.cgroups_can_be_disabled for release in TESTED] == [False, True, True]
