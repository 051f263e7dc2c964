"""Submit an elastic training with submitit, see it grow, and wait for it.

    python examples/submitit/submit_digits.py --elastic 1-4

submitit's own function runs once, in the batch script of the base (`slurm_use_srun=False`). It calls
`flexo run`, which starts the workers there and in satellites. The number of tasks is an additional parameter
for sbatch: submitit would expect a result from every task that it knows of.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import submitit

import flexo

SCRIPT = Path(__file__).resolve().parents[1] / "digits" / "train_ddp.py"


def parse_arguments() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elastic", default="1-4", help="the range of workers")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between steps")
    parser.add_argument("--folder", type=Path, default=Path("submitit-logs"), help="submitit's files")
    return parser.parse_args()


def main() -> None:
    """Submit, watch and wait."""
    options = parse_arguments()
    executor = submitit.AutoExecutor(folder=options.folder, cluster="slurm")
    executor.update_parameters(
        name="digits",
        timeout_min=60,
        slurm_use_srun=False,
        slurm_additional_parameters={
            "elastic": options.elastic,
            "ntasks": options.elastic.partition("-")[0],
            "gpus_per_task": 1,
        },
    )
    command = [
        "flexo",
        "run",
        "python",
        str(SCRIPT),
        f"--epochs={options.epochs}",
        f"--pause={options.pause}",
    ]
    submitted = executor.submit(submitit.helpers.CommandFunction(command))
    print(f"job {submitted.job_id}", flush=True)

    job = flexo.Job(int(submitted.job_id))
    grown = job.wait(workers=int(options.elastic.partition("-")[2]))
    print("the job has ended before it grew" if grown.ended else job.why(), flush=True)
    submitted.result()  # raises submitit's error, with the job's own, if the command has failed
    print("trained")


if __name__ == "__main__":
    main()
