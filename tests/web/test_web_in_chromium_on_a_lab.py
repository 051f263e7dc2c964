"""The pages in a real Chromium on a real cluster: a resize, a restart of flexod, two users, many viewers."""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

pytest.importorskip("torch")

from chromium import Browsers, Seen
from served import until

from flexo_lab import Lab

ROOT = Path(__file__).resolve().parents[2]
BOUND_S = 120.0
BOUND_MS = 1000 * BOUND_S
SHOWN_WITHIN_S = 2.0
VIEWERS = 50
WATCHED_S = 20.0
MOST_OF_A_CORE = 0.02
USERS = ("games", "news", "nobody")
ELASTIC = """#!/bin/sh
#SBATCH -n 1
#SBATCH --gpus-per-task=1
#SBATCH --elastic=1-4
#SBATCH --job-name=<b>digits</b>
exec {flexo} run {python} {script} --step-seconds 0.2 --epochs 100000
"""


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    return make_lab(nodes=2, gpus_per_node=4, infer_nodes=0)


def link(lab: Lab, user: str) -> str:
    return str(json.loads(lab.run(["flexo", "web", "--json"], user=user).stdout)["link"])


def url(lab: Lab) -> str:
    return f"http://127.0.0.1:{lab.ports.web}"


@contextmanager
def elastic_job(lab: Lab) -> Iterator[int]:
    """An elastic job that trains until it is cancelled."""
    words = {
        "flexo": Path(sys.executable).parent / "flexo",
        "python": sys.executable,
        "script": ROOT / "examples" / "digits" / "train.py",
    }
    script = ELASTIC.format(**{name: shlex.quote(str(path)) for name, path in words.items()})
    job = int(lab.run(["sbatch", "--parsable", "--output=/dev/null"], stdin=script).stdout)
    try:
        yield job
    finally:
        lab.run(["scancel", "--quiet", str(job)], check=False)


def granted(lab: Lab, job: int) -> int:
    """The workers that flexod has granted to the job; 0 while the job does not run."""
    jobs = json.loads(lab.run(["flexo", "jobs", "--json"]).stdout)["jobs"]
    return next((int(each["granted"]) for each in jobs if each["job_id"] == job), 0)


def when_shown(seen: Seen, job: int, size: int) -> None:
    """Wait until the page has the job with so many workers granted."""
    text = f"document.querySelector('#job-{job}')?.cells[2].innerText ?? ''"
    seen.page.wait_for_function(f"() => /^([0-9]+>)?{size}([^0-9]|$)/.test({text})", timeout=BOUND_MS)


def test_a_resize_is_shown_within_two_seconds_and_flexod_s_restart_is_outlived(
    chromium: Browsers, lab: Lab
) -> None:
    with chromium.open() as seen, elastic_job(lab) as job:
        seen.enter(link(lab, "root"))
        seen.mark()
        until(lambda: granted(lab, job) == 4, BOUND_S)
        when_shown(seen, job, 4)
        assert "<b>digits</b>" in seen.page.inner_text(f"#job-{job}")
        lab.run(["flexo", "scale", str(job), "1"])
        until(lambda: granted(lab, job) == 1, BOUND_S)
        told = time.monotonic()
        when_shown(seen, job, 1)
        assert time.monotonic() - told <= SHOWN_WITHIN_S
        assert seen.marked

        lab.stop_flexod()
        seen.page.get_by_text("flexod does not answer since").wait_for(timeout=BOUND_MS)
        lab.start_flexod()
        seen.page.get_by_text("flexod does not answer since").wait_for(state="detached", timeout=BOUND_MS)
        assert seen.marked

        seen.page.goto(f"{url(lab)}/jobs/{job}")
        seen.page.wait_for_selector("#gained")
        assert "grow" in seen.page.inner_text("main")
        seen.page.goto(f"{url(lab)}/value")
        seen.page.reload()
        seen.page.wait_for_selector("text=What stayed idle, and why")
        assert seen.violations() == []
    assert seen.complaints == []


def test_on_a_cluster_with_private_data_two_users_see_their_own_jobs_alone(
    chromium: Browsers, lab: Lab
) -> None:
    conf = lab.layout.slurm_conf
    conf.write_text(f"{conf.read_text()}\nPrivateData=jobs\n")
    toml = lab.layout.flexo_toml
    toml.write_text(toml.read_text().replace("[service]", f'[service]\nreaders = ["{lab.spec.web_account}"]'))
    lab.run(["scontrol", "reconfigure"])
    lab.restart_flexod()
    jobs = {}
    for user in ("games", "news"):
        held = ["sbatch", "--parsable", "--comment=elastic=1-2", "--gpus=1", "--hold", "--wrap=true"]
        jobs[user] = int(lab.run(held, user=user).stdout)
    with ExitStack() as stack:
        for user, other in (("games", "news"), ("news", "games")):
            seen = stack.enter_context(chromium.open())
            seen.enter(link(lab, user))
            seen.page.goto(f"{url(lab)}/mine")
            seen.page.wait_for_selector(f"#job-{jobs[user]}", timeout=BOUND_MS)
            assert seen.page.locator(f"#job-{jobs[other]}").count() == 0
            answer = seen.page.goto(f"{url(lab)}/jobs/{jobs[other]}")
            assert answer is not None
            assert answer.status == 404
            assert other not in seen.page.inner_text("main")
    lab.run(["scancel", *map(str, jobs.values())])


@pytest.mark.thorough
def test_fifty_viewers_cost_flexod_less_than_a_fiftieth_of_a_core(lab: Lab) -> None:
    alone = cpu_share(lab)
    entered = [httpx2.Client(base_url=url(lab), trust_env=False) for _ in USERS]
    for client, user in zip(entered, USERS, strict=True):
        assert client.post(link(lab, user), headers={"origin": url(lab)}).status_code == 303
    heard = [0] * VIEWERS
    over = threading.Event()
    threads = [
        threading.Thread(target=listen, args=(entered[number % len(USERS)], heard, number, over))
        for number in range(VIEWERS)
    ]
    for thread in threads:
        thread.start()
    try:
        until(lambda: all(heard), BOUND_S)
        watched = cpu_share(lab)
    finally:
        over.set()
    for thread in threads:
        thread.join()
    print(f"flexod: {alone:.2%} of a core without viewers, {watched:.2%} with {VIEWERS}")
    assert watched - alone < MOST_OF_A_CORE


def listen(client: httpx2.Client, heard: list[int], number: int, over: threading.Event) -> None:
    """An open page: hears of changes, and fetches the page then, as the browser does."""
    options = {"base_url": client.base_url, "cookies": client.cookies, "trust_env": False, "timeout": 60}
    with httpx2.Client(**options) as own, own.stream("GET", "/updates/") as lines:
        for line in lines.iter_lines():
            if line.startswith("event: changed"):
                own.get("/")
                heard[number] += 1
            if over.is_set():
                return


def cpu_share(lab: Lab) -> float:
    """flexod's share of a core, over some time."""
    (flexod,) = lab.flexod_processes()
    before, began = flexod.cpu_times(), time.monotonic()
    time.sleep(WATCHED_S)
    after = flexod.cpu_times()
    return float((sum(after[:4]) - sum(before[:4])) / (time.monotonic() - began))
