"""`flexo lab` for YARN labs: bring one up, and show its state."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass

import typer

from flexo_cli.exit_codes import ExitCode
from flexo_cli.output import Json, complain, print_json, print_line, print_pairs, print_table
from flexo_cli.site.lab_steps import ending_on_sigterm, explained, steps
from flexo_lab.layout import Layout
from flexo_lab.processes import daemons_of
from flexo_lab.yarn import YarnLab, YarnLabSpec, bring_up_yarn
from flexo_lab.yarn.kerberos import tickets_as_text
from flexo_lab.yarn.layout import WEB_PORT
from flexo_lab.yarn.record import YarnRecord
from flexo_protos.hadoop import yarn_pb2 as pb
from flexo_yarn import records
from flexo_yarn.ipc.errors import IpcError


@dataclass(frozen=True, slots=True)
class _Node:
    """A node as the ResourceManager shows it."""

    name: str
    address: str
    state: str
    gpus: int
    gpus_used: int
    containers: int


def up(
    name: str,
    nodes: int,
    gpus: int,
    infer_nodes: int,
    *,
    kerberos: bool,
    flexod: bool,
    loans: bool,
    as_json: bool,
) -> None:
    """Bring a YARN lab up, and print its state."""
    with explained(), ending_on_sigterm(), steps() as step:
        try:
            spec = YarnLabSpec(
                name=name,
                nodes=nodes,
                gpus_per_node=gpus,
                infer_nodes=infer_nodes,
                flexod=flexod,
                loans=loans,
                kerberos=kerberos,
            )
            bring_up_yarn(spec, step)
        except KeyboardInterrupt:
            complain(f"interrupted; nothing of the lab '{name}' is left")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        print_json(state_as_json(name))
    else:
        print_state(name)
        print_line("")
        print_line(f"Use it with: flexo lab shell {name}    Take it down with: flexo lab down {name}")


def is_yarn(name: str) -> bool:
    """Whether the lab of this name is a YARN lab that is up. Raises BadSpec, UnsafeFolder."""
    record = YarnRecord.read(Layout.of(name).yarn_record)
    return record is not None and record.up


def print_state(name: str) -> None:
    """Print the state of a YARN lab that is up."""
    lab = YarnLab.load(name)
    nodes, missing = _nodes(lab), _missing(lab)
    print_line(f"lab {name}")
    print_pairs(
        [
            ("kind", "YARN"),
            ("directory", str(lab.layout.directory)),
            *(("ResourceManager", f"{host}:{port}, http://{host}:{WEB_PORT}") for host, port in lab.clients),
            *([("flexod", lab.yarn_layout.flexod)] if lab.spec.flexod else []),
            *([("tickets", tickets_as_text(lab.yarn_layout))] if lab.spec.kerberos else []),
            *([("NOT alive", ", ".join(missing))] if missing else []),
        ]
    )
    print_table(
        ("NODE", "ADDRESS", "STATE", "GPUS", "IN USE", "CONTAINERS"),
        [
            (each.name, each.address, each.state, str(each.gpus), str(each.gpus_used), str(each.containers))
            for each in nodes
        ],
        right=("GPUS", "IN USE", "CONTAINERS"),
    )


def state_as_json(name: str) -> dict[str, Json]:
    """The state of a YARN lab that is up, with stable keys."""
    lab = YarnLab.load(name)
    return {
        "name": name,
        "kind": "yarn",
        "up": True,
        "directory": str(lab.layout.directory),
        "environment": dict(lab.environment()),
        "resource_manager": ",".join(f"{host}:{port}" for host, port in lab.clients),
        "daemons": [asdict(daemon) for daemon in daemons_of(lab.layout.directory)],
        "daemons_missing": list(_missing(lab)),
        "nodes": [asdict(node) for node in _nodes(lab)],
    }


def _missing(lab: YarnLab) -> tuple[str, ...]:
    alive = {daemon.name for daemon in daemons_of(lab.layout.directory)}
    kdc = ("krb5kdc",) if lab.spec.kerberos else ()
    expected = (*lab.spec.daemon_names, *kdc, *(("munged", "flexod") if lab.spec.flexod else ()))
    return tuple(name for name in expected if name not in alive)


def _nodes(lab: YarnLab) -> list[_Node]:
    """All nodes that the ResourceManager knows; () if it does not answer."""
    client = lab.client(timeout_s=5)
    name_of = {lab.yarn_layout.node(number): name for number, name in enumerate(lab.spec.node_names, 1)}
    with suppress(IpcError):
        return sorted(
            (
                _Node(
                    name=name_of.get(each.node_id.host, "?"),
                    address=each.node_id.host,
                    state=pb.NodeState.Name(each.state).removeprefix("NS_").lower(),
                    gpus=records.gpus(each.capability),
                    gpus_used=records.gpus(each.used),
                    containers=each.containers,
                )
                for each in client.nodes()
            ),
            key=lambda node: node.name,
        )
    return []
