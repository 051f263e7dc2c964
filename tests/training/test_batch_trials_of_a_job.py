"""A job tries batches in its first steps when flexod asks for it, in real processes."""

from __future__ import annotations

from pathlib import Path

import flexo_bench.jsa
from flexo_bench.local_job.assigning import assigning_flexod, variables_of
from flexo_bench.local_job.job import local_job
from flexo_protos.v1 import jobs_pb2

SCRIPT = Path(flexo_bench.jsa.__file__).with_name("train.py")


def tried_by(folder: Path, *, workers: int, asked: bool) -> jobs_pb2.TriedBatches | None:
    arguments = ("--model", "cnn", "--seconds", "8", "--least", "16", "--largest", "16")
    with (
        assigning_flexod(try_batches=asked) as flexod,
        local_job(
            folder, SCRIPT, *arguments,
            workers=workers, maximum=workers + 1, batch="16-32", daemon=flexod.address,
            **variables_of(folder.with_suffix(".secret")),
        ) as job,
    ):  # fmt: skip
        assert job.wait() == 0, job.output()
        assert len(job.events("done")) == workers
        return flexod.tried


def test_two_workers_try_the_batches_that_fit_them(tmp_path: Path) -> None:
    tried = tried_by(tmp_path / "job", workers=2, asked=True)
    assert tried is not None
    samples = [each.samples for each in tried.times]
    assert (len(samples), samples[0], samples[-1]) == (4, 8, 16)
    assert all(each.step_s > 0 for each in tried.times)
    assert tried.largest == 16
    assert tried.weights > 10_000
    assert 0 < tried.worker_s < 16


def test_a_job_that_nobody_asks_tries_nothing(tmp_path: Path) -> None:
    assert tried_by(tmp_path / "job", workers=1, asked=False) is None
