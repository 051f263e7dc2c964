"""Which nodes a job's own request permits: features as Slurm writes them, and nodes that it excludes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_clusters import node

from flexo.model.node_filter import NodeFilter

A100 = node("t1", features=frozenset({"a100", "ib"}))


@pytest.mark.parametrize(
    ("features", "permits"),
    [
        ("", True),
        ("a100", True),
        ("h100", False),
        ("a100&ib", True),
        ("a100&nvlink", False),
        ("h100|a100", True),
        ("h100|v100", False),
        ("(a100&ib)|h100", True),
        ("(a100&nvlink)|h100", False),
        ("((a100|h100)&ib)", True),
    ],
)
def test_a_node_has_the_features_that_the_job_requires_or_not(features: str, permits: bool) -> None:
    found = NodeFilter(features)
    assert found.permits(A100) is permits
    assert bool(found.why_not(A100)) is not permits


@pytest.mark.parametrize(
    "features",
    [
        *("[rack1|rack2]", "h100*2", "h100&ib|a100", "(h100", "h100)", "h100&", "&", "()", "h100(ib)"),
        "(" * 9000 + "x",
    ],
)
def test_an_expression_that_one_node_cannot_answer_is_left_to_the_cluster(features: str) -> None:
    assert NodeFilter(features).permits(A100)


def test_an_excluded_node_is_not_permitted_whatever_its_features() -> None:
    found = NodeFilter("a100", frozenset({"t1", "t7"}))
    assert not found.permits(A100)
    assert "excludes" in found.why_not(A100)


@given(st.text("ab&|()[]* ,", max_size=40))
def test_no_expression_of_a_user_breaks_anything(features: str) -> None:
    assert isinstance(NodeFilter(features).permits(A100), bool)


def test_of_the_nodes_that_a_job_accepts_only_the_named_ones_are_for_growth() -> None:
    named = NodeFilter("a100", only=frozenset({"t1", "t2"}))
    assert named.permits(A100)
    assert not named.permits(node("t2"))
    elsewhere = node("t3", features=frozenset({"a100"}))
    assert not named.permits(elsewhere)
    assert "t1, t2" in named.why_not(elsewhere)
