"""Secrets of links and sessions: whose they are, and when they end."""

from __future__ import annotations

from flexo_web.tokens import Tokens, Viewer

ADA, BOB = Viewer(1, "ada"), Viewer(2, "bob")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_token_is_its_viewers_until_it_is_withdrawn_and_no_other_text_is() -> None:
    tokens = Tokens(60.0, 5)
    of_ada, of_bob = tokens.issue(ADA), tokens.issue(BOB)
    assert (tokens.holder(of_ada), tokens.holder(of_bob), tokens.holder(""), tokens.holder("x")) == (
        ADA,
        BOB,
        None,
        None,
    )
    assert tokens.withdraw(of_ada) == ADA
    assert tokens.holder(of_ada) is None
    assert tokens.withdraw(of_ada) is None


def test_a_token_ends_after_its_lifetime() -> None:
    clock = Clock()
    tokens = Tokens(60.0, 5, clock)
    token = tokens.issue(ADA)
    clock.now += 59.0
    assert tokens.holder(token) == ADA
    clock.now += 1.0
    assert tokens.holder(token) is None
    assert tokens.withdraw(token) is None


def test_a_user_who_asks_for_too_many_loses_his_oldest_and_nobody_elses() -> None:
    tokens = Tokens(60.0, 2)
    of_bob, *of_ada = tokens.issue(BOB), *(tokens.issue(ADA) for _ in range(3))
    assert [tokens.holder(token) for token in of_ada] == [None, ADA, ADA]
    assert tokens.holder(of_bob) == BOB
