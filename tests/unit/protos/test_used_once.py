"""Each credential is taken once, as long as it is good, and nobody's credentials keep others' out."""

from __future__ import annotations

from flexo_protos.used_once import UsedOnce


def test_a_credential_is_taken_once_and_another_holders_of_the_same_number_is_another() -> None:
    used = UsedOnce()
    assert used.take("ada", "1", 60.0, 0.0)
    assert not used.take("ada", "1", 60.0, 59.0)
    assert used.take("bob", "1", 60.0, 59.0)


def test_credentials_that_have_expired_are_forgotten() -> None:
    used = UsedOnce()
    for number in range(10):
        assert used.take("ada", str(number), float(number), 0.0)
    used.take("ada", "last", 60.0, 9.5)
    assert len(used) == 1


def test_a_holder_with_too_many_is_refused_until_some_expire_and_others_are_not() -> None:
    used = UsedOnce(of_one_holder=2)
    assert [used.take("ada", str(number), 10.0, 0.0) for number in range(3)] == [True, True, False]
    assert used.take("bob", "1", 10.0, 0.0)
    assert used.take("ada", "3", 20.0, 10.0)
