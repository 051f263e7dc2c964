"""A tiny artifact with the files of Sia's: one application, on GPUs of which an A100 is twice as fast."""

from __future__ import annotations

from pathlib import Path

from small_application import write_application

HEADER = "name,time,application,num_replicas,batch_size\n"
GOOD = "bert-0,53.5,bert,2,16\n"
_A100 = """placement,local_bsz,step_time,sync_time
1,4,0.5,0
1,16,2,0
2,4,0.75,0.25
2,8,1.25,0.25
"""


def write_artifact(folder: Path, rows: str = GOOD, trace: str = "philly") -> Path:
    """The artifact in `folder`, with one workload."""
    simulator = folder / "sia-simulator"
    for suffix in ("-aws", "-dgx-ext", "-rtx"):
        write_application(simulator / "traces" / "bert", suffix)
    (simulator / "traces" / "bert" / "placements-dgx-ext.csv").write_text(_A100)
    workloads = simulator / "workloads" / trace
    workloads.mkdir(parents=True)
    (workloads / "workload-1.csv").write_text(HEADER + rows)
    return folder
