"""What a real ResourceManager tells of its applications afterwards, as flexo whatif reads it."""

from __future__ import annotations

import json
import time
from pathlib import Path

from applications import SMALL_MIB, Application
from yarn_jobs import FLEXO

from flexo_lab.yarn import YarnLab
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.formats.yarn_dump import read_dump
from flexo_yarn import records
from flexo_yarn.application_master import Ask


def test_flexo_yarn_history_has_the_gpus_and_times_of_applications_for_those_who_may_view_them(
    lab: YarnLab, tmp_path: Path
) -> None:
    application = Application.submit(lab, "default", user="games")
    application.master.ask(Ask(1, records.resource(SMALL_MIB, 1, 3)))
    application.wait_until("its container", lambda: application.held)
    began = time.time()
    time.sleep(3)  # YARN counts whole seconds of GPUs
    application.master.finish(pb.APP_SUCCEEDED)
    held_s = time.time() - began

    dump = tmp_path / "dump.json"
    dump.write_text(lab.run([FLEXO, "yarn", "history"]).stdout)
    found = read_dump(dump, ReadOptions())
    (run,) = (run for run in found.runs if run.job_id == records.application_text(application.application_id))
    assert (run.gpus, run.user, run.running) == (3, "games", False)
    assert abs(run.elapsed_s - held_s) < 2
    assert abs(run.ended_at - time.time()) < 60
    assert [(group.count, group.gpus) for group in found.nodes] == [(2, 4)]
    report = tmp_path / "whatif.json"
    once = ("--policy", "lyra", "--elastic-share", "100%")
    outputs = ("--json", str(report), "--report", str(tmp_path / "page.html"))
    lab.run([FLEXO, "whatif", "--yarn", str(dump), *once, *outputs])
    assert json.loads(report.read_text())["cluster"]["gpus"] == 8

    hidden = lab.run(["env", "HADOOP_USER_NAME=mail", FLEXO, "yarn", "history"]).stdout
    dump.write_text(hidden)
    refused = lab.run([FLEXO, "whatif", "--yarn", str(dump)], check=False)
    assert refused.returncode == 1
    assert "startedTime is 0" in refused.stderr
    assert "ask as an administrator" in refused.stderr
