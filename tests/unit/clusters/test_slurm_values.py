"""Slurm's spellings of values, lists of nodes, and flexo's own marks in comments."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from flexo.clusters.slurm.hostlist import BadHostlist, expand
from flexo.clusters.slurm.marks import elastic_request, satellite_tag
from flexo.clusters.slurm.text import (
    BadValue,
    epoch,
    generic_resources,
    memory_mib,
    shared_gpus_in_use,
    time_limit_s,
    tres,
)
from flexo.model.queue import ElasticRequest, JobKey, SatelliteTag
from flexo.model.ranges import Range
from flexo_protos.resources import Devices, Resources


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("(null)", []),
        ("i1", ["i1"]),
        ("t[1-3,07-09],i1", ["t1", "t2", "t3", "t07", "t08", "t09", "i1"]),
        ("t[09-11]", ["t09", "t10", "t11"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
        ("gpu-a[1-2]-x", ["gpu-a1-x", "gpu-a2-x"]),
    ],
)
def test_a_list_of_nodes_is_expanded_in_its_order(text: str, names: list[str]) -> None:
    assert list(expand(text)) == names


@pytest.mark.parametrize("text", ["t[1-3", "t]1[", "t[a-b]", "t[]", ",t1", "t[1-9999999]"])
def test_a_text_that_is_no_list_of_nodes_is_refused_with_its_words(text: str) -> None:
    with pytest.raises(BadHostlist, match="'"):
        expand(text)


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=20, unique=True))
def test_every_number_in_brackets_comes_out_once(numbers: list[int]) -> None:
    assert expand(f"n[{','.join(map(str, numbers))}]") == tuple(f"n{number}" for number in numbers)


@st.composite
def a_range(draw: st.DrawFn) -> str:
    first, more, digits = draw(st.integers(0, 1200)), draw(st.integers(0, 20)), draw(st.integers(1, 4))
    return f"{first:0{digits}}-{first + more:0{digits}}" if more else f"{first:0{digits}}"


RANGES = st.lists(a_range(), min_size=1, max_size=3).map(lambda each: f"[{','.join(each)}]")
WORDS = st.sampled_from(["i7", "login-01", "c.example.org"]) | st.builds(
    "".join, st.tuples(st.sampled_from(["t", "gpu-a", "r01n"]), RANGES, st.just("") | RANGES.map("x".__add__))
)


@pytest.fixture(scope="module")
def slurm_configuration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scontrol needs one to begin with; it asks nobody."""
    if shutil.which("scontrol") is None:
        pytest.skip("Slurm is not installed")
    path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    path.write_text("ClusterName=test\nSlurmctldHost=localhost\nNodeName=n1\n")
    return path


@pytest.mark.processes
@settings(max_examples=examples(40))
@given(words=st.lists(WORDS, min_size=1, max_size=5))
def test_lists_are_expanded_as_slurm_itself_does(words: list[str], slurm_configuration: Path) -> None:
    text = ",".join(words)
    command = ["scontrol", "show", "hostnames", text]
    environment = os.environ | {"SLURM_CONF": str(slurm_configuration)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert list(expand(text)) == done.stdout.split()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5:00", 300),
        ("30:00", 1800),
        ("1:00:00", 3600),
        ("1-02:04:00", 93840),
        ("365-00:00:00", 31_536_000),
        ("UNLIMITED", None),
        ("NOT_SET", None),
        ("Partition_Limit", None),
    ],
)
def test_a_time_limit_is_read_in_seconds(text: str, seconds: int | None) -> None:
    assert time_limit_s(text) == seconds


def test_a_time_limit_that_is_none_is_refused() -> None:
    with pytest.raises(BadValue, match="soon"):
        time_limit_s("soon")


@pytest.mark.parametrize(
    ("text", "mib"),
    [("200M", 200), ("1G", 1024), ("1.50G", 1536), ("2T", 2_097_152), ("100K", 1), ("4000", 4000), ("0", 0)],
)
def test_memory_is_read_in_mib_rounded_up(text: str, mib: int) -> None:
    assert memory_mib(text) == mib


def test_a_time_that_slurm_does_not_know_is_no_time() -> None:
    assert [epoch(text) for text in ("1795256550", "N/A", "0", "Unknown")] == [1795256550.0, None, None, None]


@pytest.mark.parametrize(
    ("text", "count", "gpu_type"),
    [
        ("(null)", 0, ""),
        ("N/A", 0, ""),
        ("gpu:4", 4, ""),
        ("gpu:v100:4(S:0-1)", 4, "v100"),
        ("gpu:(null):2(IDX:0,2)", 2, ""),
        ("gpu:v100:0(IDX:N/A)", 0, "v100"),
        ("gpu:v100:2(IDX:0-1),gpu:a100:1(IDX:2)", 3, ""),
        ("gpu:1g.5gb:7", 7, "1g.5gb"),
        ("gres:gpu", 1, ""),
        ("gres:gpu:2", 2, ""),
        ("gres:gpu:v100:3", 3, "v100"),
        ("gres/gpu:v100:3", 3, "v100"),
        ("gres/gpu:v100=1", 1, "v100"),
        ("cpu=8", 0, ""),
        ("license:4,gres/gpu:2", 2, ""),
    ],
)
def test_gpus_are_counted_in_every_spelling(text: str, count: int, gpu_type: str) -> None:
    read = generic_resources(text)
    assert (read.gpus, read.gpu_type) == (count, gpu_type)


@pytest.mark.parametrize("text", ["", "N/A", "(null)", "None", "Unknown"])
def test_where_slurm_says_nothing_there_is_nothing(text: str) -> None:
    assert generic_resources(text) == Resources()


def test_gpus_in_use_in_pieces_are_noticed() -> None:
    assert shared_gpus_in_use("gpu:4(IDX:0-3),shard:2(1/4,1/4)")
    assert not shared_gpus_in_use("gpu:4(IDX:0-3),shard:0(0/4,0/4)")
    assert not shared_gpus_in_use("gpu:v100:4(IDX:0-3)")


def test_typed_gpus_in_a_tres_list_are_not_counted_twice() -> None:
    text = "cpu=2,mem=1.50G,node=1,billing=2,gres/gpu=3,gres/gpu:v100=3"
    assert tres(text) == Resources(gpus=3, memory_mib=1536, gpu_type="v100")
    assert tres("cpu=1,mem=1G,gres/gpu:a100=1,gres/gpu:v100=2") == Resources(gpus=3, memory_mib=1024)


def test_other_devices_beside_gpus_are_counted_by_name_and_type() -> None:
    text = "gpu:h100:2(S:0-1),spare:s1:1,spare:s0:2(IDX:0),nic,tmp:no_consume:4G,scratch:20G,shard:8,mps:100"
    assert generic_resources(text) == Resources(
        gpus=2,
        gpu_type="h100",
        devices=(Devices("nic"), Devices("spare", "s0", 2), Devices("spare", "s1", 1)),
    )


def test_an_elastic_request_is_found_behind_what_the_site_wrote() -> None:
    whole = ElasticRequest(Range(2, 8), fungible=True, batch=Range(32, 256))
    assert elastic_request("site note flexo{workers=2-8;fungible;batch=32-256}") == whole
    assert elastic_request("flexo{workers=2-8} more") == ElasticRequest(Range(2, 8))
    several = ElasticRequest(Range(2, 8), heterogeneous=True)
    assert elastic_request("flexo{workers=2-8;heterogeneous}") == several


def test_a_request_to_share_gpus_is_read_with_its_words() -> None:
    taking = ElasticRequest(Range(2, 8), opportunistic=True)
    assert elastic_request("flexo{workers=2-8;opportunistic}") == taking
    asked = elastic_request("flexo{workers=2-8;opportunistic=auto;batch=8-64}")
    assert asked == ElasticRequest(Range(2, 8), batch=Range(8, 64), opportunistic=True, auto=True)
    assert (asked.base_workers, asked.requested_workers) == (0, 1)
    giving = elastic_request("flexo{workers=2-2;cohost}")
    assert giving == ElasticRequest(Range(2, 2), cohost=True)
    assert (giving.base_workers, giving.requested_workers) == (2, 2)


def test_words_of_a_later_release_are_skipped() -> None:
    assert elastic_request("flexo{workers=2-8;opportunistic=later;other;third=3}") == ElasticRequest(
        Range(2, 8)
    )


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "(null)",
        "flexo{}",
        "flexo{workers=8-2}",
        "flexo{fungible}",
        "notflexo{workers=1-2}",
        "flexo{workers=1-2}x",
    ],
)
def test_an_admin_comment_without_a_good_request_is_of_an_ordinary_job(comment: str) -> None:
    assert elastic_request(comment) is None


def test_a_satellites_tag_is_read_back() -> None:
    tag = satellite_tag("flexo-satellite base=17 restart=1 grant=4f-2.a:b_c workers=2")
    assert tag == SatelliteTag(JobKey(17, 1), "4f-2.a:b_c", 2)
    aggregator = satellite_tag("flexo-satellite base=17 restart=1 grant=g workers=0")
    assert aggregator == SatelliteTag(JobKey(17, 1), "g", 0)


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "flexo-satellite base=17 restart=1 grant=g workers=00",
        "flexo-satellite base=17 restart=1 grant=g workers=2\n",
        "x flexo-satellite base=17 restart=1 grant=g workers=2",
        "flexo-satellite base=99999999999 restart=1 grant=g workers=2",
        "flexo-satellite base=17 restart=1 grant=g h workers=2",
    ],
)
def test_a_comment_that_is_not_exactly_a_tag_is_none(comment: str) -> None:
    assert satellite_tag(comment) is None
