"""How a site and `flexo run` say where leases are kept."""

from __future__ import annotations

import pytest

from flexo_protos.lease_place import GRAMMAR, Kind, LeasePlace, parse


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("flexod", LeasePlace(Kind.FLEXOD)),
        ("run", LeasePlace(Kind.RUN)),
        ("flexod://ctl1:6836#3f9c", LeasePlace(Kind.FLEXOD, ("ctl1:6836",), run="3f9c")),
        ("flexod://a:1,b:2#r", LeasePlace(Kind.FLEXOD, ("a:1", "b:2"), run="r")),
        ("run://10.1.0.7:41234#3f9c", LeasePlace(Kind.RUN, ("10.1.0.7:41234",), run="3f9c")),
        ("flexod://[fe80::1]:6836", LeasePlace(Kind.FLEXOD, ("[fe80::1]:6836",))),
        ("etcd://e1:2379", LeasePlace(Kind.ETCD, ("e1:2379",))),
        ("etcds://e1:1,e2:2/a/b#r", LeasePlace(Kind.ETCD_OVER_TLS, ("e1:1", "e2:2"), "a/b", "r")),
    ],
)
def test_a_place_is_read_and_told_again(text: str, place: LeasePlace) -> None:
    assert parse(text) == place
    assert parse(str(place)) == place


@pytest.mark.parametrize(
    "text",
    [
        "", "etcd", "etcd://", "etcd://e1", "etcd://e1:0", "etcd://e1:70000", "run://a:1,b:2",
        "flexod://a:1/prefix", "runs", "zookeeper://a:1", "etcd://a:1#", "etcd://user:password@a:1",
        "flexod://a:1#r s",
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="names no place") as error:
        parse(text)
    assert GRAMMAR in str(error.value)
