"""A YARN lab's specification, addresses and files; nothing is started."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from flexo.config import parse
from flexo_lab import BadSpec
from flexo_lab.layout import Layout
from flexo_lab.yarn import YarnLabSpec
from flexo_lab.yarn.files import flexo_toml, write_files
from flexo_lab.yarn.layout import YarnLayout
from flexo_lab.yarn.record import YarnRecord
from flexo_yarn.configuration import read_client


def read(path: Path) -> dict[str, str]:
    root = ElementTree.parse(path).getroot()
    return {str(each.findtext("name")): str(each.findtext("value")) for each in root}


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", "A lab"), ("nodes", 0), ("nodes", 65), ("gpus_per_node", 0), ("memory_mib_per_node", 100)],
)
def test_a_bad_specification_is_refused_by_its_field(field: str, value: object) -> None:
    with pytest.raises(BadSpec, match="allowed"):
        YarnLabSpec(**{field: value})  # type: ignore[arg-type]


def test_labs_and_their_parts_have_addresses_of_their_own() -> None:
    layouts = [YarnLayout(Path("/lab"), number) for number in (10000, 10001, 64999)]
    addresses = [
        address
        for layout in layouts
        for address in (
            *layout.resource_managers,
            layout.zookeeper,
            *(layout.node(number) for number in range(1, 65)),
        )
    ]
    assert len(set(addresses)) == len(addresses)
    assert all(address.startswith("127.") for address in addresses)


def test_each_node_has_its_address_its_resources_and_its_folders(tmp_path: Path) -> None:
    layout = YarnLayout(tmp_path, 10000)
    write_files(layout, YarnLabSpec(nodes=3, gpus_per_node=2, cores_per_node=6, memory_mib_per_node=2048))
    seen = []
    for number, node in enumerate(("n1", "n2", "n3"), 1):
        site = read(layout.conf(node) / "yarn-site.xml")
        assert site["yarn.nodemanager.hostname"] == layout.node(number)
        assert site["yarn.nodemanager.resource.cpu-vcores"] == "6"
        assert site["yarn.resourcemanager.hostname"] == layout.resource_managers[0]
        seen.append(site["yarn.nodemanager.local-dirs"])
        resources = read(layout.conf(node) / "node-resources.xml")
        assert resources["yarn.nodemanager.resource-type.yarn.io/gpu"] == "2"
    assert len(set(seen)) == 3


def test_the_queues_share_the_whole_cluster_and_only_flex_is_preempted_from(tmp_path: Path) -> None:
    layout = YarnLayout(tmp_path, 10000)
    write_files(layout, YarnLabSpec())
    queues = read(layout.conf("rm") / "capacity-scheduler.xml")
    prefix = "yarn.scheduler.capacity.root"
    names = queues[f"{prefix}.queues"].split(",")
    assert sum(int(queues[f"{prefix}.{name}.capacity"]) for name in names) == 100
    assert queues[f"{prefix}.flex.maximum-capacity"] == "100"


def test_a_record_is_read_as_it_was_written_and_a_broken_one_is_none(tmp_path: Path) -> None:
    record = YarnRecord(YarnLabSpec(name="mine", nodes=2), 12345, up=True)
    path = tmp_path / "yarn.json"
    record.write(path)
    assert YarnRecord.read(path) == record
    path.write_text("{")
    assert YarnRecord.read(path) is None
    assert YarnRecord.read(tmp_path / "elsewhere.json") is None


def test_with_kerberos_clients_know_the_principal_and_flexod_has_a_keytab(tmp_path: Path) -> None:
    layout, spec = YarnLayout(tmp_path, 10000), YarnLabSpec(nodes=1, kerberos=True)
    write_files(layout, spec)
    found = read_client(layout.client_conf)
    assert (found.kerberos, found.principal) == (True, f"rm/_HOST@{layout.realm}")
    settings = parse(flexo_toml(Layout(tmp_path), layout, spec), "flexo.toml").yarn
    assert (settings.keytab, settings.principal) == (layout.keytab("flexo"), f"flexo@{layout.realm}")
    realms = {YarnLayout(tmp_path, number).realm for number in (10000, 10001)}
    assert len(realms) == 2


def test_kerberos_and_inference_nodes_are_refused_together() -> None:
    with pytest.raises(BadSpec, match="kerberos: allowed"):
        YarnLabSpec(kerberos=True, infer_nodes=1)
