"""Every sample exactly once an epoch, whatever happens to the job; on simulated jobs."""

from __future__ import annotations

from data_job import Job
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

sizes = st.tuples(
    st.integers(1, 300),  # samples
    st.integers(1, 6),  # batch size
    st.integers(1, 5),  # workers
)


settle = settings(max_examples=examples(80))
EVENTS = ["step"] * 6 + ["commit"] * 3 + ["resize", "crash", "crash in a step", "batch"]


@settle
@given(sizes, st.data())
def test_every_sample_is_trained_on_once_an_epoch_under_any_sequence_of_events(shape, data):
    samples, batch_size, workers = shape
    job = Job(samples, batch_size, workers, partitions=data.draw(st.integers(1, samples)))
    play(job, EVENTS, data)


@settle
@given(sizes, st.data())
def test_so_it_is_while_leaders_are_lost_and_messages_late(shape, data):
    samples, batch_size, workers = shape
    trouble = data.draw(st.sampled_from(["loses", "delays"]))
    happens = {trouble: lambda: data.draw(st.integers(0, 9)) == 0}
    job = Job(samples, batch_size, workers, partitions=data.draw(st.integers(1, samples)), **happens)
    play(job, [*EVENTS, "new leader", "forgetful leader", "leader away"], data)


@settle
@given(sizes, st.data())
def test_so_it_is_without_flexo(shape, data):
    play(Job(*shape, flexo=False), EVENTS, data)


@settle
@given(sizes, st.booleans(), st.integers(1, 6), st.data())
def test_so_it_is_when_mini_batches_are_drawn_before_they_are_trained_on(shape, flexo, ahead, data):
    play(Job(*shape, flexo=flexo, drawn_ahead=ahead), EVENTS, data)


@settle
@given(sizes, st.lists(st.sampled_from([0.0, 1 / 3, 1.0, 3.0]), min_size=1, max_size=6), st.data())
def test_so_it_is_in_a_job_whose_gpus_differ(shape, speeds, data):
    samples, batch_size, workers = shape
    partitions = data.draw(st.integers(1, samples))
    job = Job(samples, batch_size, workers, partitions=partitions, speeds=speeds)
    play(job, [*EVENTS, "speed", "new leader", "leader away"], data)


def play(job: Job, events: list[str], data: st.DataObject) -> None:
    for event in data.draw(st.lists(st.sampled_from(events), max_size=30)):
        happen(job, event, data)
        job.leader_away = event == "leader away"
    job.finish_epoch()
    job.finish_epoch()


def happen(job: Job, event: str, data: st.DataObject) -> None:
    ranks = range(len(job.workers))
    if event == "step":
        job.step()
    elif event == "commit":
        job.commit()
    elif event == "resize":
        leave = data.draw(st.sets(st.sampled_from(ranks), max_size=len(ranks) - 1))
        join, order, back = data.draw(st.tuples(st.integers(0, 2), st.integers(0, 99), st.booleans()))
        job.resize(leave=leave, join=join, order=order, call_back=back)
    elif event.startswith("crash") and len(ranks) > 1:
        dead = data.draw(st.sets(st.sampled_from(ranks), min_size=1, max_size=len(ranks) - 1))
        committed = data.draw(st.sets(st.sampled_from(ranks)))
        if event == "crash in a step":
            committed = set()
            job.step(stop_after=data.draw(st.integers(0, 4 * len(ranks))))
        job.crash(dead, committed)
    elif event == "new leader":
        job.new_leader()
    elif event == "forgetful leader":
        job.new_leader(hears=False)
    elif event in ("batch", "speed"):
        change_some(job, event, data)


def change_some(job: Job, event: str, data: st.DataObject) -> None:
    for worker in data.draw(st.sets(st.sampled_from(range(len(job.workers))))):
        share, session = job.workers[worker].share, job.workers[worker].session
        if event == "batch":
            share.allotment.batch_size = data.draw(st.integers(1, 9))
        else:
            session.speed = data.draw(st.sampled_from([0.0, 0.5, 2.0]))
