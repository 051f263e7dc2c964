"""A job's workers over time, from flexod's events, and the picture of them."""

from __future__ import annotations

from flexod_double import event

from flexo_protos.v1 import admin_pb2 as pb
from flexo_web.chart import HEIGHT, WIDTH, chart_of
from flexo_web.sizes import Sizes, Step, sizes_of

GROWN = event(10.0, "grow", "grow by 2 workers on t2: x", "t2", 2, True)
GIVEN_BACK = event(20.0, "shrink", "give back 2 workers on t2: x", "t2", 2)
HAS_LEFT = event(25.0, "left", "satellite 9 with 2 workers has left t2", "t2", 2)


def standing(node: str, workers: int, state: str = "training") -> pb.GrantView:
    return pb.GrantView(node=node, workers=workers, state=state)


def test_a_grant_adds_its_workers_and_the_first_word_of_its_end_takes_them_away() -> None:
    sizes = sizes_of([GROWN, GIVEN_BACK, HAS_LEFT], 2, ())
    assert sizes == Sizes(2, (Step(10.0, 2, 4, 0), Step(20.0, 4, 2, 1)))
    assert sizes.last == 2


def test_a_grant_that_ends_by_itself_takes_its_workers_away() -> None:
    lost = event(30.0, "lost", "satellite 9 with 2 workers has left t2, unasked", "t2", 2)
    assert sizes_of([GROWN, lost], 2, ()).steps[-1] == Step(30.0, 4, 2, 1)


def test_events_that_change_no_grant_make_no_step() -> None:
    told = [event(5.0, "scale", "capped at 4"), GROWN, event(15.0, "profile", "profiled")]
    assert sizes_of(told, 2, ()).steps == (Step(10.0, 2, 4, 1),)


def test_what_stood_before_the_first_known_event_counts_from_the_beginning() -> None:
    """The oldest events of a long history are missing."""
    sizes = sizes_of([GIVEN_BACK, HAS_LEFT], 2, [standing("t5", 1), standing("t6", 4, "leaving")])
    assert sizes == Sizes(5, (Step(20.0, 5, 3, 0),))


def test_a_grant_that_a_new_flexod_takes_over_is_not_counted_twice() -> None:
    adopted = event(15.0, "adopt", "satellite 9 with 2 workers on t2 is taken over", "t2", 2, True)
    assert sizes_of([GROWN, adopted], 2, [standing("t2", 2)]).last == 4


def test_the_picture_has_its_steps_where_their_times_are_and_stays_within_its_frame() -> None:
    sizes = Sizes(2, (Step(500.0, 2, 8, 0),))
    chart = chart_of(sizes, 0.0, 1000.0, 2, 8, ended=True)
    (mark,) = chart.marks
    assert (mark.x, mark.y, chart.most) == (WIDTH / 2, 0.0, 8)
    assert chart.least_y == HEIGHT * 3 / 4
    assert chart.line.startswith(f"M0 {HEIGHT * 3 / 4}")
    early = chart_of(Sizes(2, (Step(-5.0, 2, 4, 0),)), 0.0, 10.0, 2, 8, ended=False)
    assert early.marks[0].x == 0.0


def test_the_picture_of_a_running_job_stays_the_same_for_a_while() -> None:
    sizes = Sizes(2, ())
    ends = {chart_of(sizes, 0.0, 10_000.0 + second, 2, 8, ended=False).ends_at for second in range(60)}
    assert len(ends) <= 2
