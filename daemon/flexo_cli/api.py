"""flexo for Python programs and notebooks: `flexo.submit` and `flexo.Job`.

    job = flexo.submit("train.sbatch", elastic="2-8", gpus_per_task=1, partition="train")
    job.wait(workers=4)
    print(job.why())
    job.scale(2)

flexo's wheel for users is enough. Calls prove with MUNGE who you are, as the `flexo` command does.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from flexo.model.ranges import Range
from flexo_cli.connection import Address, Daemon, Refusal, find_address
from flexo_cli.sizes import Size, scaled
from flexo_cli.waiting import Goal, exit_code, reached
from horovod_elastic.platforms.slurm import submission


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job has its size. Its text is what `flexo why` begins with."""

    headline: str
    """One line, such as ``4 of 2-8 workers: no idle a100``; "": the job has ended."""
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.headline, *self.sentences)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `Job.wait` has waited for."""

    workers: int
    """Workers that train; 0: the job has ended."""
    state: str = ""
    """The cluster's state of a job that has ended, such as COMPLETED; "": it runs, or nobody knows."""
    exit_code: int | None = None
    """As a shell would have it: 128 + n for signal n, never 0 unless it completed. None: the job runs."""

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.exit_code is not None


@dataclass(frozen=True, slots=True)
class Job:
    """An elastic job: ``flexo.Job(1234)``, or what `submit` returns.

    Methods that ask flexod raise ``flexo.Unreachable`` and ``flexo.Refusal``, with the `flexo` command's
    sentences.
    """

    job_id: int
    daemon: str | None = None
    """flexod's host:port; None: $FLEXO_DAEMON, or the configuration."""

    def why(self) -> Explanation:
        """The reasons for the number of the job's workers."""
        reply = self._flexod().explain(self.job_id)
        return Explanation(reply.headline, tuple(reply.sentences))

    def scale(self, size: int | str, nodes: Sequence[str] = ()) -> str:
        """Change the job's size: 4 (at most), "+2", "-2", or "auto"; return flexod's answer.

        `nodes`: with "+2", the job grows on these only. Raises ValueError for anything else, and
        ``flexo.Busy`` while the job is being resized.
        """
        return scaled(self._flexod(), self.job_id, Size.parse(str(size)), nodes).text

    def wait(self, workers: int = 0, timeout_s: float | None = None) -> Outcome:
        """Wait until the job has ended or, with `workers`, until that number of workers trains.

        Check ``ended`` in any case: a job may end before it has the workers. It goes on while flexod is away,
        and warns once. Raises TimeoutError after `timeout_s` seconds.
        """
        if workers < 0:
            raise ValueError(f"workers={workers}; allowed is a number of workers, or 0 for the job's end")
        seen = reached(self.daemon, self.job_id, Goal(workers), timeout_s, _warn)
        if seen.end is None:
            return Outcome(seen.workers)
        return Outcome(0, seen.end.state, exit_code(seen.end))

    def cancel(self) -> None:
        """Cancel the job with scancel; its satellites end too. Raises ``flexo.Refusal``."""
        if not submission.is_slurms(self.job_id):
            raise Refusal(f"job {self.job_id} runs on YARN: use yarn application -kill")
        try:
            submission.cancel(self.job_id)
        except submission.NotSubmitted as error:
            raise Refusal(str(error)) from error

    def _flexod(self) -> Daemon:
        return _client(find_address(self.daemon))


def submit(
    script: str | Path,
    *arguments: str,
    elastic: str = "",
    daemon: str | None = None,
    **options: str | int | bool,
) -> Job:
    """Submit a job script, such as one of `flexo init`, with sbatch.

    `elastic`: the range MIN-MAX of workers; "": the script's own #SBATCH lines say it. MIN is also the number
    of tasks. `options` are those of sbatch, with _ for -: ``partition="train", gpus_per_task=1``. They go
    before the script's own lines. `arguments` are the script's. `daemon`: as in `Job`.

    Raises ``flexo.Refusal`` if Slurm or the plugin refuses, and ValueError for a range or an option that is
    none.
    """
    asked: dict[str, str | int | bool] = {}
    if elastic:
        asked = {"ntasks": Range.parse(elastic).min, "elastic": elastic}
    try:
        return Job(submission.submit(Path(script), arguments, asked | options), daemon)
    except submission.NotSubmitted as error:
        raise Refusal(str(error)) from error


@lru_cache(maxsize=4)
def _client(address: Address) -> Daemon:
    """One client for each address: a program may ask every second, and every client has connections."""
    return Daemon(address)


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)
