"""A step does the same to the model however many workers share its batch, in real Horovod processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "one_batch.py"
SAMPLES = 37
BOUND_S = 120


@pytest.fixture
def rendezvous_port() -> Iterator[int]:
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer(verbose=0)
    port = server.start()
    yield port
    server.stop()


def train(workers: int, port: int, **how: object) -> list[dict[str, object]]:
    """What each of `workers` processes ends with, by rank."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps({"samples": SAMPLES, **how})],
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
    alone = expected_weights()
    ended = train(workers, rendezvous_port, largest=largest, op=op)
    assert sum(worker["samples"] for worker in ended) == SAMPLES
    assert max(worker["passes"] for worker in ended) > 1 or not largest
    for worker in ended:
        assert worker["weights"] == pytest.approx(alone, rel=1e-5, abs=1e-6)


def expected_weights() -> list[float]:
    """Three steps of plain PyTorch on the whole batch, without Horovod and without any of ours."""
    import torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    inputs, targets = torch.randn(SAMPLES, 6), torch.randint(0, 3, (SAMPLES,))
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return [float(value) for parameter in model.parameters() for value in parameter.detach().flatten()]
