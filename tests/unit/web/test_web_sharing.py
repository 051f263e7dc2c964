"""The page of sharing: who uses whose GPU, and what that costs whom."""

from __future__ import annotations

from flexod_double import FlexodDouble, job
from signed_in import Browser

from flexo_protos.v1 import admin_pb2 as pb


def test_a_shared_gpu_has_its_holder_its_guest_and_the_cost_once(
    flexod: FlexodDouble, browser: Browser
) -> None:
    pair = pb.SharedGpuView(
        node="t1", gpu=3, holder=17, guest=18, utilization=0.61, slowdown=0.034, opportunistic_share=0.27
    )
    flexod.jobs = [job(17, shared_gpus=[pair]), job(18, "bob", account="chem", shared_gpus=[pair])]
    text = browser().get("/sharing").text
    assert text.count('id="gpu-t1-3"') == 1
    for fact in ("61%", "27% of the time", "3.4% a step", 'href="/jobs/17"', 'href="/jobs/18"', "chem"):
        assert fact in text
    assert "<dt>Highest cost to a holder</dt><dd>3.4%</dd>" in text


def test_a_gpu_that_nobody_else_uses_yet_has_no_guest(flexod: FlexodDouble, browser: Browser) -> None:
    flexod.jobs = [job(17, shared_gpus=[pb.SharedGpuView(node="t1", gpu=3, holder=17)])]
    text = browser().get("/sharing").text
    assert ">none<" in text
    assert "<dt>Shared now</dt><dd>0</dd>" in text


def test_jobs_with_shared_aggregators_are_named_with_what_that_costs_them(
    flexod: FlexodDouble, browser: Browser
) -> None:
    use = pb.JobAggregation(
        wants_pool=True, state="shares", aggregators=[pb.JobAggregator(name="c1:7000", share=1)],
        alone_s=0.5, now_s=0.515, loss=0.03,
    )  # fmt: skip
    flexod.jobs = [job(17, aggregation=use), job(18)]
    text = browser().get("/sharing").text
    assert "c1:7000" in text
    assert "0.515 s" in text
    assert "3.0% of its speed" in text
    assert 'href="/jobs/18"' not in text


def test_where_nothing_is_shared_the_page_says_so(browser: Browser) -> None:
    assert "No job shares its GPUs" in browser().get("/sharing").text
