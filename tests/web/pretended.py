"""What flexod's double says to Chromium: a cluster with all that pages can show, and a large one."""

from __future__ import annotations

import time

from flexod_double import FlexodDouble, event, job

from flexo_protos.v1 import admin_pb2 as pb

HOSTILE = (
    '<script>window.pwned=1</script>"><img src=x onerror="window.pwned=1">\'{{ 7*7 }}'
    "<svg/onload=window.pwned=1> javascript:window.pwned=1 \u202egpj"
)
PAGES = (
    "/", "/mine", "/loans", "/sharing", "/value", "/what-if", "/jobs/17", "/jobs/999", "/events/5", "/whatif",
)  # fmt: skip
"""One of each page, a job that nobody knows, and an address that is none."""


def furnish(flexod: FlexodDouble, word: str = "resnet-50") -> None:
    """Have something to show on every page. `word`: what users call everything."""
    now = time.time()
    pair = pb.SharedGpuView(
        node="t1", gpu=0, holder=17, guest=18, utilization=0.6, slowdown=0.03, opportunistic_share=0.3
    )
    points = [
        pb.ScalingPoint(workers=n, samples_per_s=90.0 * n**0.9, step_s=0.1, efficiency=0.98**n, batches=9)
        for n in (2, 4, 8)
    ]
    why = (
        "4 of 8 workers: job 31 (pending, bob) is about to start on t3;"
        " t2 has idle GPUs beside the job's own satellite there, which keeps its size"
    )
    common = {"account": word, "started_at": now - 7200, "name": word, "partition": "train"}
    moving = pb.GrantView(grant_id="g2", node="t3", workers=2, state="warming", slurm_job_id=10)
    flexod.jobs = [
        job(17, word, reasons=[why], shared_gpus=[pair], scaling=points, resizes=2, paused_s=3.5, **common),
        job(18, "bob", granted=6, grants=[moving], shared_gpus=[pair], **common),
    ]
    flexod.nodes = [
        pb.NodeView(name="t1", gpus=4, gpus_allocated=4, gpu_type="a100"),
        pb.NodeView(name="t2", gpus=4, gpus_allocated=2, gpu_type="a100"),
        pb.NodeView(name="t3", gpus=4, gpus_allocated=2, gpu_type="a100"),
        pb.NodeView(name="t4", gpus=4, gpu_type="a100", unusable=f"DOWN: {word}"),
    ]
    flexod.status.gpus, flexod.status.gpus_idle, flexod.status.gpus_in_satellites = 16, 4, 4
    flexod.status.trouble = f"slurmctld answers slowly: {word}"
    flexod.waiting = [
        pb.WaitingJob(
            job_id=31, user=word, min=4, max=8, reason="Resources", waits_for=f"for resources: {word}",
            submitted_at=now - 300, starts_at=now + 600,
        ),
    ]  # fmt: skip
    flexod.order = [31]
    flexod.loans = pb.ListLoansReply(
        lending=True,
        inference_partition="infer",
        partition="borrowed",
        view=pb.LendingView(servers=4, demand=1.5, source="partition infer", why=word, lent=1, coming_back=1),
        loans=[
            pb.LoanView(node="i1", state="lent", since_at=now - 900, why=word, satellite_workers=2),
            pb.LoanView(
                node="i2", state="called back", since_at=now - 900, why=word, called_back_at=now - 20,
                deadline_at=now + 280, why_back=word, satellite_workers=1, bases=[17],
            ),
        ],
        past=[
            pb.PastLoanView(
                node="i3", since_at=now - 9000, why=word, called_back_at=now - 5000, deadline_at=now - 4700,
                why_back=word, empty_at=now - 5000 + took, ended_at=now - 4600, workers_scaled_in=2,
            )
            for took in (12, 25, 320)
        ],
    )  # fmt: skip
    flexod.events = [
        event(now - 7000, "grow", f"grow by 2 workers on t2: {word}", "t2", 2, True, number=1),
        event(now - 4000, "shrink", f"give back 2 workers on t2: {word}", "t2", 2, number=2),
        event(now - 2000, "grow", f"grow by 2 workers on t2: {word}", "t2", 2, True, number=3),
        event(now - 900, "lend", f"i1 is lent to training: {word}", number=4, job_id=0),
        event(now - 20, "call back", f"i2 is called back: {word}", number=5, job_id=0),
    ]
    flexod.explained = {
        17: pb.ExplainJobReply(
            headline=f"4 of 2-8 workers: {word}",
            sentences=[f"job 17 ({word}) of 2-8 workers trains with 4", why],
            events=[each for each in reversed(flexod.events) if each.job_id == 17],
        )
    }


def enlarge(flexod: FlexodDouble, nodes: int = 1000, jobs: int = 5000) -> None:
    """A large cluster, of which half of the GPUs are idle."""
    flexod.nodes = [
        pb.NodeView(name=f"n{number:04}", gpus=8, gpus_allocated=number % 9, gpu_type="h100")
        for number in range(nodes)
    ]
    flexod.jobs = [
        job(number, f"user{number % 40}", reasons=[f"4 of 8 workers: no idle GPU for job {number}"])
        for number in range(1, jobs + 1)
    ]
    flexod.status.gpus = 8 * nodes
    flexod.status.nodes = nodes
