"""Who has taken part in a step's averages is known of those who die."""

from horovod_elastic.core.c10d.attendance import Attendance

ALL, WITHOUT_2 = frozenset({0, 1, 2}), frozenset({0, 1})


def test_nobody_is_absent_before_the_first_average() -> None:
    assert Attendance(3).absent() == frozenset()


def test_who_contributes_to_one_average_of_a_step_is_not_absent() -> None:
    attendance = Attendance(3)
    attendance.contribute(ALL)
    attendance.contribute(WITHOUT_2)
    assert attendance.absent() == frozenset()


def test_who_contributes_to_no_average_of_the_next_step_is_absent_from_then_on() -> None:
    attendance = Attendance(3)
    attendance.contribute(ALL)
    assert attendance.absent() == frozenset()
    attendance.contribute(WITHOUT_2)
    attendance.contribute(WITHOUT_2)
    assert attendance.absent() == {2}
    assert attendance.absent() == {2}, "several ask"
