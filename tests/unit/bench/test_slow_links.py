"""What make bench-service says of slow links: the least time that they allow, and what has crossed them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from flexo_bench.service import slow_links
from flexo_bench.service.namespaces import Traffic
from flexo_bench.service.slow_links import OWN_NODES, RING, SERVICE, busiest_link, least_s

pytestmark = pytest.mark.thorough


def test_workers_with_a_pool_send_all_numbers_once_and_those_of_a_ring_half_as_much_again() -> None:
    least = least_s(12_500_000, 100e6)
    assert least == {RING: pytest.approx(1.5), SERVICE: pytest.approx(1.0), OWN_NODES: pytest.approx(1.5)}


def test_a_pool_with_fewer_aggregators_than_workers_is_the_bottleneck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slow_links, "AGGREGATORS", 2)
    assert least_s(12_500_000, 100e6)[SERVICE] == pytest.approx(2.0)


def test_the_busiest_link_is_that_which_most_crosses_in_one_direction() -> None:
    turn = [Traffic(300, 900), Traffic(600, 100)]
    quiet, busy = [Traffic(0, 0)] * 2, [Traffic(3000, 0)] * 2
    assert busiest_link([turn, quiet, busy]) == 900 / slow_links.ITERATIONS
