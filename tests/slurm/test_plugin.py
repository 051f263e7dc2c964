"""slurm_plugin/ in a real Slurm: what is refused, what the job gets, what the controller records."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flexo_lab import Lab, LabSpec, bring_up, why_unavailable

pytestmark = pytest.mark.slurm

USER = "games"
MINIMUM = ("-n", "2", "--gpus-per-task=1")
ASKING = (*MINIMUM, "--elastic=2-8")
SITE_LUA = """
    package.path = "{plugin}/?.lua;" .. package.path
    local elastic = require("job_submit_elastic")
    elastic.config.max_workers = 64

    function slurm_job_submit(job_desc, part_list, submit_uid)
      if job_desc.name and job_desc.name:find("^site") then
        job_desc.admin_comment = "project=42"
      end
      return elastic.job_submit(job_desc, part_list, submit_uid)
    end

    function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
      return elastic.job_modify(job_desc, job_rec, part_list, modify_uid)
    end
"""


@dataclass(frozen=True)
class Answer:
    """What a submission came to."""

    job_id: str | None
    said: str
    """Standard error: refusals and remarks."""


@dataclass(frozen=True)
class Site:
    """A cluster whose administrator has a job_submit.lua of his own and a limit of 64 workers."""

    lab: Lab

    def sbatch(self, *options: str, wrap: str = "true") -> Answer:
        """Submit a held job as an ordinary user."""
        return self.answer("sbatch", "--parsable", "-H", "-o", "/dev/null", *options, "--wrap", wrap)

    def sbatch_script(self, *lines: str, options: tuple[str, ...] = ()) -> Answer:
        """Submit a held script made of `lines`."""
        script = "\n".join(["#!/bin/sh", "#SBATCH -H -o /dev/null", *lines, "true", ""])
        return self.answer("sbatch", "--parsable", *options, stdin=script)

    def answer(self, *command: str, stdin: str | None = None) -> Answer:
        """Run a command that prints the id of the job it submits."""
        done = self.lab.run(command, user=USER, check=False, stdin=stdin)
        assert "command not found" not in done.stderr
        job_id = done.stdout.strip() if done.returncode == 0 else None
        assert job_id is None or job_id.isdigit(), done
        return Answer(job_id, done.stderr)

    def output_of(self, script: str, *options: str) -> dict[str, str]:
        """Run a batch job to its end; the NAME=value lines that it printed."""
        path = self.lab.scratch / f"out-{len(list(self.lab.scratch.iterdir()))}"
        answer = self.answer(
            "sbatch", "--parsable", "-o", str(path), *options, stdin="#!/bin/sh\n" + textwrap.dedent(script)
        )
        assert answer.job_id, answer.said
        self.wait_for_end(answer.job_id)
        return dict(re.findall(r"^(\w+)=(.*)$", path.read_text(), re.MULTILINE))

    def wait_for_end(self, job_id: str) -> None:
        """Until the job is COMPLETED; an assertion fails when it ends otherwise, or not within 90 s."""
        state = "unknown"
        for _ in range(450):
            shown = self.lab.run(["scontrol", "show", "job", job_id]).stdout
            found = re.search(r"JobState=(\w+)", shown)
            state = found[1] if found else "gone"
            if state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
                break
            time.sleep(0.2)
        assert state == "COMPLETED", f"job {job_id} is {state}"

    def admin_comment(self, job_id: str | None) -> str | None:
        """What flexod will read; None when there is none."""
        assert job_id, "the job was refused"
        shown = self.lab.run(["scontrol", "show", "job", job_id]).stdout
        found = re.search(r"^\s*AdminComment=(.*?)\s*$", shown, re.MULTILINE)
        return found[1] if found else None

    def expect_refused(self, answer: Answer, *words: str) -> None:
        """No job, and the user was told all of `words`."""
        assert answer.job_id is None, f"accepted: {answer}"
        for word in words:
            assert word in answer.said

    def expect_token(self, answer: Answer, token: str | None) -> None:
        """A job with that AdminComment."""
        assert answer.job_id is not None, answer.said
        assert self.admin_comment(answer.job_id) == token


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    reason = why_unavailable()
    if reason:
        pytest.skip(reason)
    lab = bring_up(LabSpec(name=f"plugin-{os.getpid()}", nodes=2, flexod=False))
    try:
        _become_a_site(lab)
        yield Site(lab)
    finally:
        lab.down()


def _become_a_site(lab: Lab) -> None:
    layout = lab.layout
    layout.job_submit.write_text(textwrap.dedent(SITE_LUA).format(plugin=layout.plugin))
    later = (
        layout.job_submit.stat().st_mtime + 10
    )  # slurmctld reads the file again when it is newer than its last look
    os.utime(layout.job_submit, (later, later))
    layout.plugstack_conf.write_text(f"required {layout.plugin / 'spank_elastic.so'} max_workers=64\n")


@pytest.fixture(scope="module")
def other_client(site: Site) -> str:
    """A client that loads no SPANK plugin and says what it likes."""
    program = site.lab.scratch / "other_client"
    source = Path(__file__).with_name("other_client.c")
    done = subprocess.run(
        ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", program, source, "-lslurm"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return str(program)


# --- what is accepted -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "token"),
    [
        (["--elastic=2-8"], "flexo{workers=2-8}"),
        (["--elastic", "2-2"], "flexo{workers=2-2}"),
        (["--elastic=2-64"], "flexo{workers=2-64}"),
        (["--elastic=2-8", "--elastic-fungible"], "flexo{workers=2-8;fungible}"),
        (["--elastic=2-8", "--elastic-batch=32-256"], "flexo{workers=2-8;batch=32-256}"),
        (
            ["--elastic-batch=32-4096", "--elastic-heterogeneous", "--elastic-fungible", "--elastic=2-8"],
            "flexo{workers=2-8;fungible;heterogeneous;batch=32-4096}",
        ),
        (["--elastic-cohost"], "flexo{workers=2-2;cohost}"),
        (["--elastic=2-8", "--elastic-cohost"], "flexo{workers=2-8;cohost}"),
    ],
)
def test_the_options_are_recorded_in_the_admin_comment(site: Site, options: list[str], token: str) -> None:
    site.expect_token(site.sbatch(*MINIMUM, *options), token)


@pytest.mark.parametrize(
    ("value", "token"),
    [
        ("1-4", "flexo{workers=1-4;opportunistic}"),
        ("02-8,auto", "flexo{workers=2-8;opportunistic=auto}"),
    ],
)
def test_an_opportunistic_job_asks_for_one_task_without_gpus(site: Site, value: str, token: str) -> None:
    asked = f"--elastic-opportunistic={value}"
    site.expect_token(site.sbatch("-n", "1", "-c", "2", "--mem=100M", asked), token)
    for wrong in (("-n", "2"), ("-n", "1", "--gpus=1"), ("-N", "2", "-n", "2")):
        site.expect_refused(site.sbatch(*wrong, asked), "sbatch -n 1 -c 4 --mem=16G --elastic-opportunistic=")


@pytest.mark.parametrize("other", ["--elastic=2-8", "--elastic-cohost"])
def test_an_opportunistic_job_has_no_gpus_of_its_own(site: Site, other: str) -> None:
    answer = site.sbatch("-n", "1", "--elastic-opportunistic=1-4", other)
    site.expect_refused(answer, "--elastic-opportunistic and", "exclude each other")


@pytest.mark.parametrize(
    ("request_", "elastic"),
    [
        ("-n 2 --gpus-per-task=1", "2-8"),
        ("-n 2 --gpus-per-task=2", "2-8"),
        ("-N 1 -n 2 --gres=gpu:2", "2-8"),
        ("-N 2 -n 2 --gres=gpu:1", "2-8"),
        ("-N 2 -n 4 --gpus-per-node=2", "4-8"),
        ("-N 2 --ntasks-per-node=2 --gres=gpu:2", "4-8"),
        ("-n 2 --gpus=4", "2-8"),
        ("--gpus=2 --ntasks-per-gpu=1", "2-8"),
        ("-n 1 --gres=gpu:2", "1-8"),
        ("--gres=gpu:1", "1-8"),
        ("-N 2 --gres=gpu:1", "2-8"),
    ],
)
def test_every_way_to_ask_for_the_minimum_is_accepted(site: Site, request_: str, elastic: str) -> None:
    answer = site.sbatch(*request_.split(), f"--elastic={elastic}")
    site.expect_token(answer, f"flexo{{workers={elastic}}}")


def test_sbatch_lines_of_a_script_are_heard(site: Site) -> None:
    lines = (
        "#SBATCH -n 2 --gpus-per-task=1",
        "#SBATCH --elastic=2-8",
        "#SBATCH --elastic-fungible",
        "#SBATCH --elastic-batch=32-256",
    )
    site.expect_token(site.sbatch_script(*lines), "flexo{workers=2-8;fungible;batch=32-256}")


def test_the_command_line_goes_before_the_script(site: Site) -> None:
    answer = site.sbatch_script("#SBATCH -n 2 --gpus-per-task=1 --elastic=2-8", options=("--elastic=2-4",))
    site.expect_token(answer, "flexo{workers=2-4}")


@pytest.mark.parametrize("command", ["salloc", "srun"])
def test_salloc_and_srun_make_elastic_jobs_too(site: Site, command: str) -> None:
    show = "scontrol show job $SLURM_JOB_ID; env"
    done = site.lab.run(
        [command, "-n", "1", "--gpus-per-task=1", "--elastic=1-8", "sh", "-c", show], user=USER
    )
    assert "AdminComment=flexo{workers=1-8}" in done.stdout
    assert "\nFLEXO_ELASTIC=1-8\n" in done.stdout


def test_a_sites_own_admin_comment_is_kept(site: Site) -> None:
    site.expect_token(site.sbatch("-J", "site-a", *ASKING), "project=42 flexo{workers=2-8}")
    site.expect_token(site.sbatch("-J", "site-b", *MINIMUM), "project=42")


def test_the_commands_list_the_options(site: Site) -> None:
    text = site.lab.run(["sbatch", "--help"]).stdout
    assert "--elastic=MIN-MAX" in text
    assert "--elastic-fungible" in text
    assert "--elastic-heterogeneous" in text
    assert "--elastic-batch=MIN-MAX" in text
    assert "--elastic-opportunistic=MIN-MAX[,auto]" in text
    assert "--elastic-cohost" in text


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--elastic", "--elastic-batch"])
@pytest.mark.parametrize(
    "value",
    [
        "",
        "8-2",
        "0-2",
        "2",
        "2-",
        "-8",
        " 2-8",
        "2-8 ",
        "+2-8",
        "2--8",
        "2-8x",
        "a-b",
        "2-4294967298",
        '2-8"',
        "2-8}",
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name_before_submission(
    site: Site, option: str, value: str
) -> None:
    others = [] if option == "--elastic" else ["--elastic=2-8"]
    answer = site.sbatch(*MINIMUM, *others, f"{option}={value}")
    site.expect_refused(answer, f"{option}='{value}': ", "MIN-MAX", " from 1 to ")


def test_a_maximum_over_the_sites_limit_is_refused_with_the_limit(site: Site) -> None:
    site.expect_refused(
        site.sbatch(*MINIMUM, "--elastic=2-65"), "--elastic='2-65'", "site's limit", "from 1 to 64"
    )


def test_a_value_that_cannot_be_is_refused_in_a_script_as_well(site: Site) -> None:
    answer = site.sbatch_script("#SBATCH -n 2 --gpus-per-task=1 --elastic=8-2")
    site.expect_refused(answer, "--elastic='8-2'", "maximum", "minimum")


@pytest.mark.parametrize("command", ["salloc", "srun"])
def test_salloc_and_srun_refuse_a_value_that_cannot_be(site: Site, command: str) -> None:
    done = site.lab.run([command, *MINIMUM, "--elastic=8-2", "true"], user=USER, check=False)
    assert done.returncode != 0
    assert re.search(r"--elastic='8-2'.*\bmaximum\b.*\bminimum\b", done.stderr)


@pytest.mark.parametrize("option", ["--elastic-fungible", "--elastic-batch=32-256"])
def test_the_other_options_need_elastic(site: Site, option: str) -> None:
    answer = site.sbatch(*MINIMUM, option)
    site.expect_refused(answer, f"{option.partition('=')[0]} needs --elastic=MIN-MAX")


@pytest.mark.parametrize("option", ["--elastic-fungible", "--elastic-batch=32-256"])
def test_where_the_plugin_is_optional_the_controller_refuses_them(site: Site, option: str) -> None:
    plugstack = site.lab.layout.plugstack_conf
    before = plugstack.read_text()
    plugstack.write_text(before.replace("required", "optional"))
    try:
        answer = site.sbatch(*MINIMUM, option)
    finally:
        plugstack.write_text(before)
    site.expect_refused(answer, f"flexo: {option.partition('=')[0]} needs --elastic=MIN-MAX")


def test_an_argument_in_plugstack_conf_that_cannot_be_is_named(site: Site) -> None:
    plugstack = site.lab.layout.plugstack_conf
    before = plugstack.read_text()
    plugstack.write_text(before.replace("max_workers=64", "max_worker=64"))
    try:
        elastic, plain = site.sbatch(*ASKING), site.sbatch(*MINIMUM)
    finally:
        plugstack.write_text(before)
    site.expect_refused(elastic, "'max_worker=64'", "plugstack.conf", "max_workers=N")
    site.expect_token(plain, None)


def test_a_job_array_is_refused(site: Site) -> None:
    site.expect_refused(site.sbatch(*ASKING, "--array=0-1"), "job array")


def test_a_job_of_several_components_is_refused(site: Site) -> None:
    site.expect_refused(site.sbatch(*ASKING, ":", "-n", "1"), "several components")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ("-n 3 --gpus-per-task=1", ["(-n 2)", "3 task(s)"]),
        ("-n 1 --gpus-per-task=1", ["(-n 2)", "1 task(s)"]),
        ("--gres=gpu:1", ["(-n 2)", "1 task(s)"]),
        ("-n 2", ["needs GPUs"]),
        ("-n 2 --gpus=3", ["3 GPUs", "2 tasks"]),
        ("-N 1 -n 2 --gres=gpu:3", ["3 GPUs on each of 1 nodes", "2 tasks"]),
    ],
)
def test_a_request_that_is_not_the_minimum_is_refused_with_a_line_that_works(
    site: Site, request_: str, words: list[str]
) -> None:
    answer = site.sbatch(*request_.split(), "--elastic=2-8")
    site.expect_refused(answer, *words)
    example = re.search(r"sbatch (-n \d+ [^.\n]*?) \.\.\.", answer.said)
    assert example, answer.said
    site.expect_token(site.sbatch(*example[1].split()), "flexo{workers=2-8}")


def test_gpus_per_node_are_refused_when_slurm_picks_the_nodes(site: Site) -> None:
    answer = site.sbatch("-n", "2", "--gres=gpu:2", "--elastic=2-8")
    site.expect_refused(answer, "how many nodes")
    example = re.search(r"sbatch (-N 1 [^.\n]*?) \.\.\.", answer.said)
    assert example, answer.said
    site.expect_token(site.sbatch(*example[1].split()), "flexo{workers=2-8}")


def test_a_step_inside_a_job_is_refused(site: Site) -> None:
    step = "srun -n 1 --elastic=1-2 true"
    done = site.lab.run(["salloc", "-n", "1", "sh", "-c", step], user=USER, check=False)
    assert re.search(r"--elastic\b.*\bjob\b.*\bstep\b", done.stderr)


# --- satellites' partitions -----------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["flex", "borrowed"])
def test_in_a_satellite_partition_the_flag_is_ignored_and_the_user_hears_so(
    site: Site, partition: str
) -> None:
    answer = site.sbatch("-p", partition, *ASKING)
    site.expect_token(answer, None)
    assert re.search(rf"--elastic\b.*\bignored\b.*\b{partition}\b", answer.said)


def test_a_job_that_could_start_among_satellites_or_elsewhere_is_refused(site: Site) -> None:
    site.expect_refused(site.sbatch("-p", "train,flex", *ASKING), "'train,flex'")


# --- the job's environment ------------------------------------------------------------------------

SHOW = "env | grep -E 'ELASTIC|SPANK' || true"
ALL = {
    "FLEXO_ELASTIC": "1-8",
    "FLEXO_ELASTIC_FUNGIBLE": "1",
    "FLEXO_ELASTIC_HETEROGENEOUS": "1",
    "FLEXO_ELASTIC_BATCH": "32-256",
    "FLEXO_ELASTIC_COHOST": "1",
}
ALL_ELSE = ("--elastic-fungible", "--elastic-heterogeneous", "--elastic-batch=32-256", "--elastic-cohost")
ONE = ("-n", "1", "--gpus-per-task=1", "--elastic=1-8")


@pytest.mark.parametrize("export", ["--export=ALL", "--export=NONE", "--export=HOME"])
def test_the_job_learns_its_range_whatever_it_exports(site: Site, export: str) -> None:
    seen = site.output_of(f"/usr/bin/{SHOW}", *ONE, *ALL_ELSE, export)
    assert seen == ALL


@pytest.mark.parametrize("export", ["--export=ALL", "--export=NONE"])
def test_an_opportunistic_job_learns_its_range_and_its_word(site: Site, export: str) -> None:
    seen = site.output_of(f"/usr/bin/{SHOW}", "-n", "1", "--elastic-opportunistic=1-4,auto", export)
    assert seen == {"FLEXO_ELASTIC_OPPORTUNISTIC": "1-4,auto"}


def test_the_steps_of_a_job_learn_its_range(site: Site) -> None:
    assert site.output_of(f'srun sh -c "{SHOW}"', *ONE) == {"FLEXO_ELASTIC": "1-8"}


def test_a_plain_sbatch_inside_an_elastic_job_is_a_plain_job(site: Site) -> None:
    inner = site.lab.scratch / "inner"
    outer = f"""
        job=$(sbatch --parsable -n 1 --gpus-per-task=1 -o {inner} --wrap "{SHOW}; echo END=1")
        echo JOB=$job
    """
    job_id = site.output_of(outer, *ONE, *ALL_ELSE)["JOB"]
    assert site.admin_comment(job_id) is None
    site.wait_for_end(job_id)
    assert inner.read_text() == "END=1\n"


def test_a_plain_sbatch_inside_salloc_is_a_plain_job(site: Site) -> None:
    inner = site.lab.scratch / "of-salloc"
    sbatch = f'sbatch --parsable -n 1 --gpus-per-task=1 -o {inner} --wrap "{SHOW}; echo END=1"'
    salloc = site.lab.run(["salloc", *ONE, "sh", "-c", sbatch], user=USER)
    job_id = salloc.stdout.strip()
    assert site.admin_comment(job_id) is None
    site.wait_for_end(job_id)
    assert inner.read_text() == "END=1\n"


def test_an_elastic_sbatch_inside_an_elastic_job_has_its_own_range(site: Site) -> None:
    outer = "echo JOB=$(sbatch --parsable -H -n 2 --gpus-per-task=1 --elastic=2-3 --wrap true)"
    job_id = site.output_of(outer, *ONE, *ALL_ELSE)["JOB"]
    assert site.admin_comment(job_id) == "flexo{workers=2-3}"


def test_slurms_variable_for_the_option_has_no_effect(site: Site) -> None:
    name = "SLURM_SPANK__SLURM_SPANK_OPTION_flexo_elastic"
    answer = site.answer("env", f"{name}=2-8", "sbatch", "--parsable", "-H", *MINIMUM, "--wrap", "true")
    site.expect_token(answer, None)


# --- jobs that did not ask ------------------------------------------------------------------------


def test_a_job_without_the_options_is_left_alone(site: Site) -> None:
    answer = site.sbatch(*MINIMUM)
    site.expect_token(answer, None)
    assert answer.said == ""
    assert site.output_of(SHOW, "-n", "1") == {}


@pytest.mark.parametrize(
    "options",
    [["--array=0-3"], ["-n", "3"], ["-p", "train,flex"], [":", "-n", "1"], ["-N", "1", "--gres=gpu:3"]],
)
def test_what_an_elastic_job_may_not_do_others_may(site: Site, options: list[str]) -> None:
    answer = site.sbatch(*options)
    assert answer.job_id is not None, answer.said
    assert answer.said == ""


@pytest.mark.parametrize(
    "comment", ["elastic", "an elastic beam, E=2-8", "elasticity=2-8 inelastic=2-8", "flexo{workers=2-8}"]
)
def test_a_comment_of_the_users_own_is_not_disturbed(site: Site, comment: str) -> None:
    answer = site.sbatch(*MINIMUM, f"--comment={comment}")
    site.expect_token(answer, None)
    assert f"Comment={comment}" in site.lab.run(["scontrol", "show", "job", str(answer.job_id)]).stdout


# --- clients without SPANK, and clients that lie --------------------------------------------------


@pytest.mark.parametrize(
    ("comment", "token"),
    [
        ("elastic=2-8", "flexo{workers=2-8}"),
        ("night run; elastic=2-8;elastic-fungible", "flexo{workers=2-8;fungible}"),
        ("elastic-batch=32-256 elastic=2-8", "flexo{workers=2-8;batch=32-256}"),
    ],
)
def test_clients_without_spank_say_it_in_the_comment(
    site: Site, other_client: str, comment: str, token: str
) -> None:
    site.expect_token(site.answer(other_client, "2", comment, ""), token)
    site.expect_token(site.sbatch(*MINIMUM, f"--comment={comment}"), token)


@pytest.mark.parametrize(
    ("tasks", "comment", "word"),
    [
        ("2", "elastic=8-2", "'8-2'"),
        ("2", "elastic=2-65", "from 1 to 64"),
        ("2", 'elastic=2-8"}', "'2-8\"}'"),
        ("2", "elastic-fungible", "needs --elastic"),
        ("3", "elastic=2-8", "3 task(s)"),
    ],
)
def test_a_comment_is_checked_as_the_options_are(
    site: Site, other_client: str, tasks: str, comment: str, word: str
) -> None:
    site.expect_refused(site.answer(other_client, tasks, comment, ""), word)


@pytest.mark.parametrize(
    "line",
    [
        "FLEXO_ELASTIC=2-999",
        "FLEXO_ELASTIC=8-2",
        "FLEXO_ELASTIC=2-8}",
        "FLEXO_ELASTIC=2-8;fungible",
        "FLEXO_ELASTIC=2-8\nflexo{workers=1-9}",
        "FLEXO_ELASTIC=" + "9" * 5000,
    ],
)
def test_a_client_that_lies_is_checked_on_the_controllers_side(
    site: Site, other_client: str, line: str
) -> None:
    site.expect_refused(site.answer(other_client, "2", "", "", line), "flexo: --elastic='")


def test_options_and_comment_that_contradict_each_other_are_refused(site: Site) -> None:
    site.expect_refused(site.sbatch(*ASKING, "--comment=elastic=2-9"), "'2-8'", "'2-9'")


def test_a_user_cannot_write_the_token_himself(site: Site, other_client: str) -> None:
    token = "flexo{workers=1-64}"
    site.expect_refused(site.answer(other_client, "2", "", token), "denied")
    answer = site.sbatch(*MINIMUM)
    update = ["scontrol", "update", f"JobId={answer.job_id}", f"AdminComment={token}"]
    assert site.lab.run(update, user=USER, check=False).returncode != 0
    site.expect_token(answer, None)


# --- later ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["NumTasks=3", "NumNodes=2", "Gres=gpu:4", "Partition=flex"])
def test_the_request_of_an_elastic_job_stays_as_it_was_checked(site: Site, change: str) -> None:
    elastic, plain = site.sbatch(*ASKING), site.sbatch(*MINIMUM)
    refused = site.lab.run(["scontrol", "update", f"JobId={elastic.job_id}", change], user=USER, check=False)
    assert refused.returncode != 0
    # Slurm 22.05 gives the reason to slurmctld's log alone; later releases tell the user alone
    said = (site.lab.layout.logs / "slurmctld.log").read_text() + refused.stderr
    assert re.search(r"flexo: .*\belastic job cannot (be changed|move)\b", said)
    site.expect_token(elastic, "flexo{workers=2-8}")
    allowed = site.lab.run(["scontrol", "update", f"JobId={plain.job_id}", change], user=USER, check=False)
    assert "Unspecified error" not in allowed.stderr  # what a refusal by Lua looks like there


def test_time_limit_and_priority_of_an_elastic_job_may_change(site: Site) -> None:
    job_id = site.sbatch(*ASKING).job_id
    site.lab.run(["scontrol", "update", f"JobId={job_id}", "TimeLimit=10", "Nice=5"], user=USER)
    site.lab.run(["scontrol", "update", f"JobId={job_id}", "TimeLimit=20"])
    assert "TimeLimit=00:20:00" in site.lab.run(["scontrol", "show", "job", str(job_id)]).stdout
