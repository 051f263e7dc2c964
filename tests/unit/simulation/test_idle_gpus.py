"""Idle GPUs from a dump of sacct: what it tells, what it leaves open, and what it does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
from dumps import COLUMNS, dump, line
from says import says

from flexo_simulation import idle_words
from flexo_simulation.formats.accounting import SLURM, YARN
from flexo_simulation.formats.reading import ReadOptions
from flexo_simulation.formats.sacct_dump import read_dump
from flexo_simulation.idle_gpus import IdleGpus, NotTold, idle_gpus
from flexo_simulation.idle_intervals import Order

RESIZE_S = 0.25
CAPTURED = Path(__file__).parent / "captured"


def job(number: int, begin: int, end: int, gpus: int, node: str = "gpu01", **said: str) -> str:
    """A job that did not wait."""
    said = {"NodeList": node, **said}
    return line(str(number), submit=begin, wait=0, elapsed=end - begin, gpus=gpus, **said)


FOUR = [
    job(1, 0, 500, 4),
    job(2, 700, 1200, 2),
    job(3, 560, 860, 1, User="bob"),
    job(4, 1500, 1800, 4),
]


@pytest.fixture
def idle_of(tmp_path):
    """The idle GPUs of a dump of these lines."""

    def find(
        lines: list[str], gpus_per_node: int | None = None, partition: str = "", columns: str = ""
    ) -> IdleGpus | NotTold:
        path = tmp_path / "dump.txt"
        text = dump(lines)
        path.write_text(text.replace("|".join(COLUMNS), columns) if columns else text)
        found = read_dump(path, ReadOptions(partitions=frozenset({partition} - {""})))
        return idle_gpus(found.holders, found.software, gpus_per_node, RESIZE_S)

    return find


def figures(found: IdleGpus | NotTold) -> IdleGpus:
    assert isinstance(found, IdleGpus)
    return found


def why_not(found: IdleGpus | NotTold) -> str:
    assert isinstance(found, NotTold)
    (sentence,) = idle_words.sentences(found)
    assert found.why in sentence
    assert found.to_json() == {"not_told": found.why}
    return sentence


def test_four_jobs_on_one_node_are_told_from_the_first_end_to_the_last_that_came(idle_of):
    found = figures(idle_of(FOUR))
    assert (found.nodes, found.gpus, found.gpus_said) == (1, 4, False)
    assert found.window_h == pytest.approx(1000 / 3600)
    assert found.idle_share == pytest.approx(2700 / 4000)
    assert found.idle_gpu_h == pytest.approx(2700 / 3600)
    last = found.readings[0]
    assert (last.order, last.complete, last.cut_off) == (Order.LAST, 7, 0)
    assert (last.percentiles_s[50], last.percentiles_s[90]) == (300, 1000)
    assert [round(each.at_least * 2700) for each in last.longer] == [2640, 1640, 1000, 0]
    text = " ".join(idle_words.sentences(found))
    assert says(text, "4 GPUs", "1 node", "67.5%", "malleable", "0.25 s", "97.8%")
    assert says(text, "down, drained or reserved count as idle", "sacctmgr show event")
    assert "cuts off" not in text
    assert [row[:5] for row in idle_words.rows(found)] == [
        ("freed last, used first", "7", "0", "5 min", "16.7 min"),
        ("freed first, used first", "7", "0", "5 min", "16.7 min"),
    ]


def test_gpus_that_no_job_used_count_if_the_user_says_how_many_there_are(idle_of):
    assert "--gpus-per-node" in " ".join(idle_words.sentences(idle_of(FOUR)))
    found = figures(idle_of(FOUR, 8))
    assert (found.gpus, found.gpus_said) == (8, True)
    assert found.idle_share == pytest.approx(6700 / 8000)
    assert found.readings[0].cut_off == 4
    text = " ".join(idle_words.sentences(found))
    assert "--gpus-per-node" not in text
    assert says(text, "cuts off", "longer")


def test_a_job_on_several_nodes_is_known_only_if_it_had_all_gpus_of_each(idle_of):
    two = job(5, 1250, 1450, 16, "gpu[01-02]", NNodes="2")
    lines = [*FOUR, job(6, 0, 600, 8, "gpu02"), two]
    assert figures(idle_of([*FOUR, job(6, 0, 600, 8, "gpu02")])).unknown_runs == 0
    unknown = figures(idle_of(lines))
    assert (unknown.unknown_runs, unknown.idle_share) == (1, None)
    assert unknown.unknown_gpu_h == pytest.approx(200 * (4 + 8) / 3600)
    text = " ".join(idle_words.sentences(unknown))
    assert says(text, "1 job ran on several nodes", "cannot be told", "--gpus-per-node")
    assert figures(idle_of(lines, 8)).unknown_runs == 0
    uneven = [*lines[:-1], two.replace("gres/gpu=16", "gres/gpu=6")]
    found = figures(idle_of(uneven, 8))
    assert (found.unknown_runs, found.gpus) == (1, 16)
    used = 2 * 500 + 300 + 8 * 100 + 6 * 200
    assert found.idle_share == pytest.approx(1 - used / (16 * 1000))  # of both nodes together it is known


def test_jobs_that_all_ran_on_several_nodes_tell_nothing_and_the_option_that_helps_is_named(idle_of):
    lines = [job(n, 1000 * n, 1000 * n + 500, 8, "gpu[01-02]", NNodes="2") for n in range(3)]
    assert says(why_not(idle_of(lines)), "several nodes", "--gpus-per-node")
    assert figures(idle_of(lines, 4)).idle_share == pytest.approx((500 + 500) / 1500)


def test_a_number_of_gpus_that_the_jobs_belie_is_refused(idle_of):
    assert says(why_not(idle_of(FOUR, 3)), "--gpus-per-node says 3", "gpu01", "SLURM_TIME_FORMAT=%s")
    too_many = job(5, 2000, 2100, 9, "gpu[02-03]", NNodes="2")
    assert says(why_not(idle_of([*FOUR, too_many], 4)), "--gpus-per-node says 4", "gpu03")
    figures(idle_of([*FOUR, job(5, 2000, 2100, 9, "big", Partition="other")], 4, "gpu"))  # not on these nodes


def test_a_dump_without_nodes_says_how_to_get_them(idle_of):
    other = "|".join("Comment" if column == "NodeList" else column for column in COLUMNS)
    assert says(why_not(idle_of(FOUR, columns=other)), "no column NodeList", "--format")
    nowhere = [job(1, 0, 500, 4, "None assigned"), job(2, 900, 1000, 1, "")]
    assert says(why_not(idle_of(nowhere)), "no job in the dump names its nodes", "NodeList")
    captured = read_dump(CAPTURED / "sacct-22.05-parsable2.txt", ReadOptions())
    assert "no column NodeList" in why_not(idle_gpus(captured.holders, SLURM, None, RESIZE_S))


def test_yarn_does_not_tell_nodes():
    assert "YARN" in why_not(idle_gpus(None, YARN, 8, RESIZE_S))


def test_a_dump_that_is_nowhere_complete_is_said_to_be_too_short(idle_of):
    assert says(why_not(idle_of([job(1, 0, 500, 4), job(2, 100, 600, 1)])), "first end", "longer dump")


def test_while_a_job_without_a_node_runs_nothing_is_known(idle_of):
    found = figures(idle_of([*FOUR, job(5, 1000, 1100, 1, "None assigned")]))
    assert (found.nameless_runs, found.idle_share) == (1, None)
    assert found.unknown_gpu_h == pytest.approx(100 * 4 / 3600)
    assert says(" ".join(idle_words.sentences(found)), "Without a node in NodeList: 1 job")


def test_a_job_whose_nodes_and_their_number_disagree_is_not_guessed_at(idle_of):
    for said in (None, 4):
        found = figures(idle_of([*FOUR, job(5, 1000, 1100, 2, "gpu01", NNodes="2")], said))
        assert (found.unknown_runs, found.idle_share) == (1, None)


def test_a_node_of_which_no_job_tells_the_gpus_is_left_out_and_counted(idle_of):
    found = figures(idle_of([*FOUR, job(5, 2000, 2100, 6, "gpu[01-02]", NNodes="2"), job(6, 2200, 2300, 1)]))
    assert (found.nodes, found.unknown_nodes, found.idle_share) == (1, 1, None)
    assert says(" ".join(idle_words.sentences(found)), "Left out", "1 node")


def test_jobs_of_other_partitions_use_the_same_nodes(idle_of):
    lines = [*FOUR, job(5, 1250, 1450, 4, Partition="other"), job(6, 0, 900, 4, "cpu1", Partition="other")]
    found = figures(idle_of(lines, partition="gpu"))
    assert found.nodes == 1
    assert found.idle_share == pytest.approx((2700 - 800) / 4000)


def test_components_of_a_heterogeneous_job_use_their_own_nodes(idle_of):
    lines = [*FOUR, job(0, 1250, 1450, 2, JobID="9+0"), job(0, 1250, 1450, 3, "gpu02", JobID="9+1")]
    found = figures(idle_of(lines))
    assert (found.nodes, found.gpus, found.unknown_runs) == (2, 7, 0)
    assert found.idle_share == pytest.approx((2700 - 400 + 3 * 800) / 7000)


def test_a_dump_of_one_user_is_warned_of(idle_of):
    assert "Warning" not in " ".join(idle_words.sentences(idle_of(FOUR)))
    mine = [text.replace("bob", "ann") for text in FOUR]
    assert says(" ".join(idle_words.sentences(idle_of(mine))), "Warning", "one user, ann", "operator")


def test_nodes_that_are_always_busy_have_no_intervals(idle_of):
    found = figures(idle_of([job(n, 100 * n, 100 * n + 100, 2) for n in range(5)]))
    assert found.idle_share == 0
    assert list(idle_words.rows(found)) == []
    assert says(" ".join(idle_words.sentences(found)), "0.0%")


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5 s"), (90, "1.5 min"), (7200, "2 h"), (90_000, "25 h"), (259_200, "3 days")]
)
def test_lengths_are_told_in_their_own_unit(seconds, text):
    assert idle_words.duration(seconds) == text
