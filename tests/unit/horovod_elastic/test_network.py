"""Where a node of the job listens."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from horovod_elastic import network


def resolves(monkeypatch: pytest.MonkeyPatch, **names: str) -> None:
    monkeypatch.setattr(network, "resolve", lambda host: names.get(host, host))


def test_a_node_listens_where_slurm_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves(monkeypatch, n7="10.0.0.7")
    assert network.own_address("n7", "head") == "10.0.0.7"


def test_a_loopback_address_that_slurm_itself_names_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves(monkeypatch, head="10.0.0.1")
    assert network.own_address("127.0.0.1", "head") == "127.0.0.1"


def test_a_name_that_leads_to_loopback_gives_way_to_the_way_to_the_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolves(monkeypatch, n7="127.0.1.1", head="10.0.0.1")
    asked = []
    monkeypatch.setattr(network, "towards", lambda destination: asked.append(destination) or "10.0.0.7")
    assert network.own_address("n7", "head") == "10.0.0.7"
    assert asked == ["10.0.0.1"]


def test_the_way_to_this_host_is_an_address_of_its_own() -> None:
    assert network.towards("127.0.0.1") == "127.0.0.1"
    assert network.interface_of("127.0.0.1") == "lo"


def test_the_traffic_of_a_link_is_counted_but_not_that_of_the_loopback_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(network, "interface_of", lambda address: "lo" if address == "127.0.0.1" else "eth0")
    counted = {
        "eth0": SimpleNamespace(bytes_recv=5, bytes_sent=7),
        "lo": SimpleNamespace(bytes_recv=9, bytes_sent=9),
    }
    monkeypatch.setattr(network.psutil, "net_io_counters", lambda pernic: counted)
    assert network.traffic(network.link_of("10.0.0.7")) == (5, 7)
    assert network.traffic(network.link_of("127.0.0.1")) == (0, 0)
    assert network.traffic("gone0") == (0, 0)


def test_an_address_of_no_interface_has_no_link() -> None:
    assert network.link_of("192.0.2.1") == ""
