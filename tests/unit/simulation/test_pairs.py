"""The speeds of two jobs on one GPU: what AntMan prints comes out, and nothing impossible does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexo_simulation.pairs import UTILIZATIONS, Control, speeds_of, utilization_of

RESNET, ESPNET, GCN = (utilization_of(name, -1.0) for name in ("ResNet-50", "ESPnet", "GCN"))
shares = st.floats(0.0, 1.0)


def test_under_antman_espnet_and_resnet_are_as_fast_as_section_5_1_prints():
    speeds = speeds_of(ESPNET, RESNET, Control.GATED)
    assert 20.1 / speeds.owner == pytest.approx(20.8, abs=0.05)
    assert speeds.guest == pytest.approx(0.57, abs=0.005)


def test_packed_espnet_takes_as_long_beside_resnet_as_section_5_1_prints():
    assert 20.1 / speeds_of(ESPNET, RESNET, Control.PACKED).owner == pytest.approx(105.2, rel=0.01)


def test_gcn_beside_resnet_is_as_fast_as_table_2_prints_and_resnet_nearly():
    speeds = speeds_of(RESNET, GCN, Control.GATED)
    assert 17.0 / speeds.guest == pytest.approx(17.9, rel=0.01)
    assert 91.1 / speeds.owner == pytest.approx(91.8, rel=0.003)


def test_models_are_known_however_their_names_are_written():
    assert utilization_of("Wide & Deep", 0.5) == utilization_of("widedeep", 0.5) == UTILIZATIONS["widedeep"]
    assert utilization_of("my own model", 0.5) == 0.5
    assert utilization_of("", 0.4) == 0.4


@given(owner=shares, guest=shares, control=st.sampled_from(Control))
def test_both_train_and_neither_is_faster_than_alone(owner: float, guest: float, control: Control):
    speeds = speeds_of(owner, guest, control)
    assert max(speeds.owner, speeds.guest) <= 1
    assert min(speeds.owner, speeds.guest) >= 0.01
    if control is Control.GATED:
        assert speeds.owner > 0.93


@given(one=shares, other=shares)
def test_packed_jobs_together_use_no_more_than_the_gpu_and_are_treated_alike(one: float, other: float):
    speeds, turned = speeds_of(one, other, Control.PACKED), speeds_of(other, one, Control.PACKED)
    assert one * speeds.owner + other * speeds.guest <= 1.01
    assert (turned.guest, turned.owner) == (speeds.owner, speeds.guest)


def test_two_packed_jobs_that_leave_each_other_enough_are_not_slowed():
    assert speeds_of(0.3, 0.6, Control.PACKED) == speeds_of(0.0, 0.0, Control.PACKED)
