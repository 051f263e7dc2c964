"""What lets a job use a pool Aggregator, and everything that does not."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexo_protos.aggregation_token import (
    LONGEST,
    MOST_QUOTA,
    AggregationToken,
    BadToken,
    check,
    check_for,
    sign,
)

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
TOKEN = AggregationToken("4711.r2", "ada", 100_000_000, 1_800_000_000)
NOW = 1_799_999_000.0


def test_an_aggregator_reads_what_flexod_has_signed() -> None:
    assert check(sign(TOKEN, KEY), KEY, NOW) == TOKEN
    assert check_for(sign(TOKEN, KEY), KEY, NOW, "4711.r2") == TOKEN


def test_the_same_content_gives_the_same_text_so_that_it_is_told_once() -> None:
    assert sign(TOKEN, KEY) == sign(dataclasses.replace(TOKEN), KEY)


def test_a_token_is_worth_nothing_at_another_aggregator() -> None:
    with pytest.raises(BadToken, match="not signed by flexod for this Aggregator"):
        check(sign(TOKEN, KEY), OTHER_KEY, NOW)


def test_a_token_of_another_job_is_refused_by_name() -> None:
    with pytest.raises(BadToken, match=r"of job 4711\.r2, not of job '4712'"):
        check_for(sign(TOKEN, KEY), KEY, NOW, "4712")


def test_an_expired_token_says_since_when() -> None:
    with pytest.raises(BadToken, match="expired 30 s ago"):
        check(sign(TOKEN, KEY), KEY, TOKEN.expires_at + 30)


@given(st.integers(0, 200), st.characters(codec="utf-8"))
def test_no_changed_character_passes(place: int, other: str) -> None:
    text = sign(TOKEN, KEY)
    place %= len(text)
    forged = text[:place] + other + text[place + 1 :]
    if forged != text:
        with pytest.raises(BadToken):
            check(forged, KEY, NOW)


@given(st.integers(0, 200))
def test_no_truncated_token_passes(length: int) -> None:
    text = sign(TOKEN, KEY)
    with pytest.raises(BadToken):
        check(text[: length % len(text)], KEY, NOW)


@given(st.text(max_size=LONGEST + 50))
def test_no_other_text_passes(text: str) -> None:
    with pytest.raises(BadToken):
        check(text, KEY, NOW)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"job": "4711:ada"}, "five fields"),
        ({"job": ""}, "job"),
        ({"user": "a da"}, "user"),
        ({"user": "ada\n"}, "user"),
        ({"quota": 0}, "quota"),
        ({"quota": -1}, "quota"),
        ({"quota": MOST_QUOTA + 1}, "quota"),
        ({"quota": 10**400}, "quota"),
        ({"expires_at": 0}, "expiry"),
        ({"expires_at": 10**400}, "expiry"),
    ],
)
def test_what_cannot_be_checked_is_not_signed(changed: dict[str, object], named: str) -> None:
    with pytest.raises(BadToken, match=named):
        sign(dataclasses.replace(TOKEN, **changed), KEY)  # type: ignore[arg-type]


def test_a_short_key_signs_and_checks_nothing() -> None:
    with pytest.raises(BadToken, match="32 are required"):
        sign(TOKEN, b"short")
    with pytest.raises(BadToken, match="32 are required"):
        check(sign(TOKEN, KEY), b"", NOW)
