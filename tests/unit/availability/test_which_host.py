"""Which of the configured hosts this one is."""

from __future__ import annotations

import pytest

from flexo.availability.which_host import NotOneOfThem, own_address

AWAY = "192.0.2.1:6836"
"""An address of documentation (RFC 5737): no host has it."""


def test_it_is_the_one_whose_name_stands_for_an_address_of_this_host() -> None:
    assert own_address([AWAY, "127.0.0.1:6836"], "") == "127.0.0.1:6836"
    assert own_address([AWAY, "localhost:1"], "") == "localhost:1"


@pytest.mark.parametrize("hosts", [[AWAY, "nobody.invalid:1"], ["127.0.0.1:1", "127.0.0.1:2"]])
def test_where_none_or_several_are_it_has_to_be_said(hosts: list[str]) -> None:
    with pytest.raises(NotOneOfThem, match="--address"):
        own_address(hosts, "")
    assert own_address(hosts, hosts[1]) == hosts[1]


def test_one_that_is_said_has_to_be_among_them() -> None:
    with pytest.raises(NotOneOfThem, match="ctl3:1 is none of"):
        own_address([AWAY, "127.0.0.1:6836"], "ctl3:1")
