"""A step does the same to the model however many workers share its batch, in real Horovod processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
SAMPLES = 37
BOUND_S = 120

pytestmark = pytest.mark.native


@pytest.fixture
def rendezvous_port() -> Iterator[int]:
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer(verbose=0)
    port = server.start()
    yield port
    server.stop()


def train(workers: int, port: int, script: str = "one_batch.py", **how: object) -> list[dict[str, Any]]:
    """What each of `workers` processes ends with, by rank."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPTS / script), json.dumps({"samples": SAMPLES, **how})],
            env={
                **os.environ,
                "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(workers),
                "HOROVOD_LOCAL_RANK": str(rank), "HOROVOD_LOCAL_SIZE": str(workers),
                "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1", "HOROVOD_HOSTNAME": "here",
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
                "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_IFACE": "lo",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(workers)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=BOUND_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * workers
    return [json.loads(output.splitlines()[-1]) for output in outputs]


@pytest.mark.parametrize(
    ("workers", "largest", "op"), [(2, 5, "Average"), (3, 0, "Average"), (3, 4, "Average"), (2, 5, "Sum")]
)
def test_accumulated_uneven_shares_are_the_step_of_one_process(
    rendezvous_port: int, workers: int, largest: int, op: str
) -> None:
    alone = expected_weights([list(range(SAMPLES))] * 3)
    ended = train(workers, rendezvous_port, largest=largest, op=op)
    assert sum(worker["samples"] for worker in ended) == SAMPLES
    assert max(worker["passes"] for worker in ended) > 1 or not largest
    for worker in ended:
        assert worker["weights"] == pytest.approx(alone, rel=1e-5, abs=1e-6)


def test_workers_on_gpus_of_different_speed_split_each_batch_and_make_the_steps_of_one_process(
    rendezvous_port: int,
) -> None:
    """Three to one, the last two mini-batches of the epoch as well; what does not fit in several passes."""
    how = {"speeds": [1.5, 0.5], "batch": 8, "largest": 4}
    ended = train(2, rendezvous_port, "split_by_speed.py", **how)
    sizes = [tuple(map(len, step)) for step in zip(*(worker["took"] for worker in ended), strict=True)]
    assert sizes == [(6, 2), (6, 2), (6, 2), (5, 2), (5, 1)]
    steps = [[*fast, *slow] for fast, slow in zip(*(worker["took"] for worker in ended), strict=True)]
    assert sorted(sample for step in steps for sample in step) == list(range(SAMPLES))
    alone = expected_weights(steps)
    for worker in ended:
        assert worker["weights"] == pytest.approx(alone, rel=1e-5, abs=1e-6)


def expected_weights(steps: list[list[int]]) -> list[float]:
    """Plain PyTorch on the samples of each step, without Horovod and without any of ours."""
    import torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    inputs, targets = torch.randn(SAMPLES, 6), torch.randint(0, 3, (SAMPLES,))
    for samples in steps:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[samples]), targets[samples]).backward()
        optimizer.step()
    return [float(value) for parameter in model.parameters() for value in parameter.detach().flatten()]
