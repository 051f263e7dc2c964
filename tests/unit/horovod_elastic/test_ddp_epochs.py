"""How many epochs a script has done, whatever loaders it trains with."""

from __future__ import annotations

import pytest

from horovod_elastic.worker.ddp.epochs import Epochs


def test_one_loader_counts_its_passes() -> None:
    assert Epochs().done(0, 4.5, says_epoch=False) == 4.5


def test_a_loader_for_each_epoch_counts_one_for_each() -> None:
    """A worker that came in the third has not seen those before."""
    founder, newcomer = Epochs(), Epochs()
    for epoch in range(3):
        for part in (0.5, 1.0):
            found = founder.done(epoch, part, says_epoch=False)
            assert found == pytest.approx(epoch + part)
    assert newcomer.done(3, 0.25, says_epoch=False) == founder.done(3, 0.25, says_epoch=False) == 3.25


def test_loaders_one_after_the_other_count_together() -> None:
    epochs = Epochs()
    epochs.done(0, 10.0, says_epoch=False)
    assert epochs.done(1, 2.5, says_epoch=False) == 12.5


def test_the_scripts_own_number_counts_whatever_the_loader() -> None:
    epochs = Epochs()
    epochs.done(0, 7.5, says_epoch=True)
    assert epochs.done(1, 8.25, says_epoch=True) == 8.25
