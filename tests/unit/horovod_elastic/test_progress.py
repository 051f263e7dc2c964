"""How far a script is, from the epochs that it has done and those that its user declared."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from says import says

from horovod_elastic import launcher, progress


@pytest.mark.parametrize(
    ("declared", "state", "part"),
    [
        ("10", SimpleNamespace(epoch=0), 0.0),
        ("10", SimpleNamespace(epoch=4), 0.4),
        ("10", SimpleNamespace(epoch=4.5), 0.45),
        ("10", SimpleNamespace(epoch=12), 1.0),
        ("10", SimpleNamespace(epoch=-1), 0.0),
        ("10", SimpleNamespace(epoch=float("nan")), 0.0),
        ("10", SimpleNamespace(epoch="four"), 0.0),
        ("10", SimpleNamespace(epoch=True), 0.0),
        ("10", SimpleNamespace(), 0.0),
        ("", SimpleNamespace(epoch=4), 0.0),
        ("many", SimpleNamespace(epoch=4), 0.0),
        ("0", SimpleNamespace(epoch=4), 0.0),
    ],
)
def test_the_part_that_is_done_is_the_epoch_among_those_declared(monkeypatch, declared, state, part):
    monkeypatch.setenv(progress.EPOCHS_VARIABLE, declared)
    assert progress.of(state) == pytest.approx(part)


@pytest.mark.parametrize(
    ("declared", "done", "part"), [("10", 4.5, 0.45), ("10", 12.0, 1.0), ("", 4.5, 0.0), ("0", 4.5, 0.0)]
)
def test_passes_over_the_training_loader_count_as_epochs(monkeypatch, declared, done, part):
    monkeypatch.setenv(progress.EPOCHS_VARIABLE, declared)
    assert progress.of_epochs(done) == pytest.approx(part)


@pytest.mark.parametrize("text", ["", "0", "-3", "ninety", "1.5", "\u0663"])
def test_what_is_no_number_of_epochs_is_refused_with_what_is_allowed(monkeypatch, capsys, text):
    monkeypatch.setenv(progress.EPOCHS_VARIABLE, "")
    assert launcher.main([f"--epochs={text}", "train"]) == 2
    assert says(capsys.readouterr().err, f"--epochs={text}", "whole number", 1)


def test_declared_epochs_are_known_to_all_who_get_the_environment(monkeypatch):
    monkeypatch.setenv(progress.EPOCHS_VARIABLE, "")
    progress.declare("90")
    assert progress.of(SimpleNamespace(epoch=45)) == 0.5
