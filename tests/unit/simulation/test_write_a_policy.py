"""The example of docs/howto/write-a-policy.md: offered by a package, simulated, under the controller."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from controller_world import World
from little_simulations import by_number, trace_job

from flexo.clusters.simulated.nodes import NodeGroup
from flexo.config import ConfigError, parse
from flexo.policies import registry
from flexo_simulation.engine import simulate
from flexo_simulation.scenario import Scenario
from flexo_simulation.workload import Workload

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "write-a-policy.md"
Offer = Callable[..., None]


def shown(language: str) -> str:
    """The first piece of code of this language on the page."""
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Installs a package of one module that offers policies."""

    def offer(package: str, code: str, entry_points: str) -> None:
        place = tmp_path / package
        dist = place / f"{package}-1.2.dist-info"
        dist.mkdir(parents=True)
        (place / f"{package}.py").write_text(code)
        (dist / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        (dist / "entry_points.txt").write_text(f"[flexo.policies]\n{entry_points}\n")
        monkeypatch.syspath_prepend(place)

    return offer


@pytest.fixture
def example(offer: Offer) -> str:
    """The policy of the page, as its package offers it; its name."""
    declared = shown("ini").splitlines()
    assert '[project.entry-points."flexo.policies"]' in declared
    entry_point = declared[-1].replace('"', "")
    offer("smallest_first", shown("python"), entry_point)
    return entry_point.partition(" ")[0]


def test_the_example_has_a_name_properties_and_settings(example: str) -> None:
    assert example in registry.names()
    assert registry.settings_of(example) == ("most_workers",)
    assert not registry.make(example, most_workers=4).uses_running_times
    assert 20 <= len(shown("python").splitlines()) <= 50


def test_the_example_starts_and_grows_small_jobs_first_in_a_simulation(example: str) -> None:
    jobs = (
        trace_job(1, 100.0, 4),
        trace_job(2, 100.0, "2-8", at=1.0),
        trace_job(3, 100.0, "1-3", at=2.0),
        trace_job(4, 100.0, 4, at=3.0),
    )
    policy = registry.make(example, most_workers=6)
    outcome = simulate(Workload("test", jobs), policy, Scenario((NodeGroup(1, 8),)))
    records = by_number(outcome)
    assert outcome.result.finished == 4
    assert outcome.policy == example
    assert max(held.workers for held in records[2].timeline) <= 6
    assert records[3].first_start_at < records[4].first_start_at


def test_the_example_has_jobs_grow_by_satellites_in_the_controllers_cycle(
    example: str, tmp_path: Path
) -> None:
    world = World(tmp_path / "world", policy=example)
    small, large = world.job(1, "1-6", "t1"), world.job(2, "3-10", "t2")
    world.go(60)
    assert not world.controller.status().trouble
    assert small.report().training_workers == 6
    assert 3 <= large.report().training_workers <= 6
    why = " ".join(world.controller.explain(2))
    assert "this one needs 3 GPUs" in why


def test_the_example_puts_pending_jobs_in_its_order(example: str, tmp_path: Path) -> None:
    world = World(tmp_path / "world", policy=example, order="policy")
    world.rigid(50, gpus=4)
    world.rigid(51, gpus=2)
    world.go(20)
    assert [key.job_id for key in world.controller.view().order] == [51, 50]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("1 / 0\n", "ZeroDivisionError"),
        ("Mine = 3\n", "not a class that extends"),
        ("from flexo.policies.fifo import Fifo as Mine\n", "its name is 'fifo'"),
        (
            "from flexo.policies.base import Policy\nclass Mine(Policy):\n    name = 'mine'\n",
            "not a frozen dataclass",
        ),
        (
            "from dataclasses import dataclass\nfrom flexo.policies.base import Policy\n"
            "@dataclass(frozen=True)\nclass Mine(Policy):\n    name = 'mine'\n",
            "lacks targets",
        ),
    ],
)
def test_a_policy_that_cannot_be_used_is_named_with_its_package_and_the_reason(
    offer: Offer, code: str, says: str
) -> None:
    package = "broken_" + re.sub(r"\W", "", says)
    offer(package, code, f"mine = {package}:Mine")
    with pytest.raises(registry.BrokenPolicy) as raised:
        registry.make("mine")
    for part in (f"{package} 1.2", "'mine'", says):
        assert part in str(raised.value)
    with pytest.raises(ConfigError) as refused:
        parse('[controller]\npolicy = "mine"\n', "flexod.toml")
    assert says in str(refused.value)


def test_the_name_of_a_policy_of_flexos_own_cannot_be_taken(offer: Offer) -> None:
    offer("greedy_package", "1 / 0\n", "lyra = greedy_package:Mine")
    with pytest.warns(RuntimeWarning, match=r"'lyra' .*greedy_package 1\.2\b"):
        assert registry.names() == registry.built_in()
    assert registry.make("lyra") == registry.make("lyra")


def test_of_two_packages_that_offer_the_same_name_one_is_used_and_the_other_named(offer: Offer) -> None:
    offer("one_package", shown("python"), "smallest-first = one_package:SmallestFirst")
    offer("two_package", "1 / 0\n", "smallest-first = two_package:Mine")
    with pytest.warns(RuntimeWarning, match=r"two_package 1\.2\b.*one_package 1\.2\b"):
        assert registry.make("smallest-first").name == "smallest-first"
