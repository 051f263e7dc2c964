"""What a checkpoint of a script of torch.distributed holds, and under which names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from horovod_elastic import checkpoints, declared  # noqa: E402
from horovod_elastic.worker import left_out  # noqa: E402
from horovod_elastic.worker.ddp import checkpoint  # noqa: E402
from horovod_elastic.worker.ddp.captured import Captured  # noqa: E402

ABOUT = checkpoints.CheckpointInfo(
    job_id=7, restart_count=0, generation=3, commits=40, workers=2, node="n1", flexo_version="1"
)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "script", declared._Script())
    monkeypatch.setattr(left_out, "made", list)


class Wrapped(torch.nn.Module):  # type: ignore[misc]
    """Stands for a DistributedDataParallel model, which cannot be made without a process group."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.module = model


def trained() -> Any:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


class Kept:
    """Remembers objects while a Captured only refers to them."""

    def __init__(self, *models: Any, optimizers: tuple[Any, ...] = ()) -> None:
        self.captured = Captured()
        self._alive = [Wrapped(model) for model in models], optimizers
        for each in self._alive[0]:
            self.captured.model(each)
        for optimizer in optimizers:
            self.captured.optimizer(optimizer)

    def names(self) -> set[str]:
        return set(checkpoint.contents(self.captured, {}).state)


def test_a_file_that_pytorch_reads_has_models_without_their_wrapper(tmp_path: Path) -> None:
    model, optimizer = trained()
    kept = Kept(model, optimizers=(optimizer,))
    checkpoints.write_contents(
        lambda: checkpoint.contents(kept.captured, {"epoch": 4, "batch": 2}), tmp_path / "c.pt", ABOUT
    )
    read = cast("dict[str, Any]", torch.load(tmp_path / "c.pt", weights_only=True))
    assert read["objects"] == {"epoch": 4, "batch": 2}
    other, fresh = torch.nn.Linear(3, 2), torch.optim.Adam(torch.nn.Linear(3, 2).parameters())
    other.load_state_dict(read["state"]["model"])
    fresh.load_state_dict(read["state"]["optimizer"])
    assert torch.equal(other.weight, model.weight)
    assert float(fresh.state_dict()["state"][0]["step"]) == 1.0


def test_several_of_a_kind_are_numbered() -> None:
    (one, first), (other, second) = trained(), trained()
    names = Kept(one, other, optimizers=(first, second)).names()
    assert names == {"model_1", "model_2", "optimizer_1", "optimizer_2"}


def test_schedulers_and_scalers_are_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = trained()
    made = [torch.optim.lr_scheduler.StepLR(optimizer, 3), torch.amp.GradScaler("cpu")]
    monkeypatch.setattr(left_out, "made", lambda: made)
    assert Kept(model, optimizers=(optimizer,)).names() == {"model", "optimizer", "scheduler", "scaler"}


def test_the_names_that_the_script_has_chosen_count() -> None:
    (one, first), (other, second) = trained(), trained()
    kept = Kept(one, other, optimizers=(first, second))
    declared.script.job = declared.ElasticJob({"critic": one, "model": first, "epoch": 3})
    found = checkpoint.contents(kept.captured, {"epoch": 0, "batch": 9})
    assert set(found.state) == {"critic", "model", "model_1", "optimizer"}
    assert found.objects == {"epoch": 3, "batch": 9}
