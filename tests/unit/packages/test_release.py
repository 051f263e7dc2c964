"""A release is tagged from the changelog, and from nothing that is not ready."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import release

pytestmark = pytest.mark.processes

CHANGELOG = """\
# Changelog

## [Unreleased]

## [0.2.0] - 2026-12-01

### Added

- Elastic jobs on another cluster.

## [0.1.0] - 2026-11-23

- The first one.
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / release.VERSION_FILE).parent.mkdir(parents=True)
    (tmp_path / release.VERSION_FILE).write_text('"""flexo."""\n\n__version__ = "0.2.0"\n')
    (tmp_path / release.CHANGELOG).write_text(CHANGELOG)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "user.email", "nobody@example.org")
    git(tmp_path, "config", "user.name", "Nobody")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", root, *words], check=True, capture_output=True, text=True).stdout


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "Prepare", "--allow-empty")


def test_the_tag_has_the_versions_name_and_its_section_of_the_changelog(checkout: Path) -> None:
    assert release.tag(checkout) == "v0.2.0"
    text = git(checkout, "tag", "--list", "--format=%(contents)", "v0.2.0")
    assert "### Added" in text
    assert "Elastic jobs on another cluster." in text
    assert "The first one." not in text


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("## [Unreleased]\n", "## [Unreleased]\n\n- Something.\n", "Unreleased"),
        ("[0.2.0]", "[0.3.0]", "0.3.0"),
        (" - 2026-12-01", "", "date"),
        ("### Added\n\n- Elastic jobs on another cluster.\n", "", "empty"),
    ],
)
def test_a_changelog_that_does_not_tell_of_the_version_is_refused(
    old: str, new: str, named: str, checkout: Path
) -> None:
    changelog = checkout / release.CHANGELOG
    changelog.write_text(changelog.read_text().replace(old, new))
    commit(checkout)
    with pytest.raises(release.NotReady, match=named):
        release.tag(checkout)
    assert git(checkout, "tag") == ""


def test_a_changed_work_tree_and_a_second_tag_are_refused(checkout: Path) -> None:
    (checkout / "left").write_text("over")
    with pytest.raises(release.NotReady, match="left"):
        release.tag(checkout)
    commit(checkout)
    release.tag(checkout)
    with pytest.raises(release.NotReady, match=r"v0\.2\.0"):
        release.tag(checkout)


def test_this_checkouts_changelog_tells_of_its_version() -> None:
    version = release.version_in((release.ROOT / release.VERSION_FILE).read_text())
    assert f"## [{version}]" in (release.ROOT / release.CHANGELOG).read_text()
