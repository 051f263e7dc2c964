"""What users' demand counts for, by what a cluster says that they have had."""

from __future__ import annotations

import pytest
from controller_world import FakeCluster
from says import says

from flexo.clusters.base import UserShare, UserShares
from flexo.control.fair_shares import FairShares
from flexo.control.recent_errors import RecentErrors


@pytest.fixture
def cluster():
    made = FakeCluster()
    made.shares = UserShares((UserShare("ada", 1.0), UserShare("bob", 0.5), UserShare("eve", 0.0)), 0.3)
    return made


@pytest.mark.parametrize(
    ("weight", "counts"),
    [(1.0, {"ada": 1.0, "bob": 0.5, "eve": 0.01}), (0.5, {"ada": 1.0, "bob": 0.75, "eve": 0.5})],
)
def test_what_a_user_has_had_weighs_as_much_as_is_set(cluster, weight, counts):
    shares = FairShares(cluster, RecentErrors("Slurm"), weight)
    assert shares.look(1_000.0) == ()
    assert shares.weights == counts
    assert shares.cost_s == 0.3


def test_it_is_read_rarely_and_costs_only_then(cluster):
    shares = FairShares(cluster, RecentErrors("Slurm"), 1.0)
    shares.look(1_000.0)
    cluster.shares = UserShares((UserShare("ada", 0.1),), 0.3)
    shares.look(1_100.0)
    assert (shares.weights["ada"], shares.cost_s) == (1.0, 0.0)
    shares.look(1_300.0)
    assert (shares.weights, shares.cost_s) == ({"ada": pytest.approx(0.1)}, 0.3)


def test_nothing_is_asked_where_it_counts_nothing():
    cluster = FakeCluster()
    cluster.refuses = "nobody may ask"
    shares = FairShares(cluster, RecentErrors("Slurm"), 0.0)
    assert shares.look(1_000.0) == ()
    assert shares.weights == {}


def test_a_cluster_without_shares_says_so_and_everybody_counts_alike(cluster):
    cluster.refuses = "sshare: slurmdbd is not configured"
    recent_errors = RecentErrors("Slurm")
    shares = FairShares(cluster, recent_errors, 1.0)
    (event,) = shares.look(1_000.0)
    assert says(event.text, "fairshare_weight", "sshare: slurmdbd is not configured")
    assert "slurmdbd" in recent_errors.recent(1_000.0)
    assert shares.weights == {}
    assert shares.look(2_000.0) == ()  # said once
