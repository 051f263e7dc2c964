"""What leaders, agents, flexod and commands of one release say, those of another understand.

released.txt has every field, value and call, as older releases know them. A new one is added there; what is
there never changes: running jobs, and hosts that are upgraded later, go by it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

import flexo_protos.v1

RELEASED = Path(__file__).with_name("released.txt")
TYPES = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}


def files() -> Iterator[FileDescriptor]:
    for module in pkgutil.iter_modules(flexo_protos.v1.__path__):
        if module.name.endswith("_pb2"):
            yield importlib.import_module(f"flexo_protos.v1.{module.name}").DESCRIPTOR


def spoken() -> set[str]:
    """A line for each field, value and call of today."""
    lines: set[str] = set()
    for file in files():
        for message in file.message_types_by_name.values():
            lines |= set(_of_message(message))
        for enum in file.enum_types_by_name.values():
            lines |= {f"{enum.full_name} {value.name} = {value.number}" for value in enum.values}
        for service in file.services_by_name.values():
            for method in service.methods:
                asked = "stream " * method.client_streaming + method.input_type.full_name
                told = "stream " * method.server_streaming + method.output_type.full_name
                lines.add(f"{method.full_name} ({asked}) returns ({told})")
    return lines


def _of_message(message: Descriptor) -> Iterator[str]:
    for field in message.fields:
        kind = field.message_type or field.enum_type
        what = kind.full_name if kind else TYPES[field.type]
        within = field.containing_oneof
        one_of = f" of {within.name}" if within and not within.name.startswith("_") else ""
        yield f"{message.full_name}.{field.name} = {field.number} {'repeated ' * _many(field)}{what}{one_of}"
    for nested in message.nested_types:
        yield from _of_message(nested)
    for enum in message.enum_types:
        yield from (f"{enum.full_name} {value.name} = {value.number}" for value in enum.values)


def _many(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


RENAMED = (
    ("flexo.v1.Standing", "flexo.v1.WorkerStatus"),
    ("flexo.v1.Outlook", "flexo.v1.ProjectedRank"),
    ("FromWorker.standing = 2 ", "FromWorker.status = 2 "),
    ("RunningWorker.standing = 4 ", "RunningWorker.status = 4 "),
    ("StartWorker.outlook = 4 ", "StartWorker.projected_rank = 4 "),
    ("ElasticJob.errand = 16 ", "ElasticJob.pending_command = 16 "),
    ("Grant.lease_s = 5 ", "Grant.time_limit_s = 5 "),
    ("Report.errand = 7 ", "Report.pending_command = 7 "),
    *((f"job_id = {number} uint32", f"job_id = {number} uint64") for number in (1, 4, 5)),
)
"""Messages and fields whose names have changed since: their numbers, which alone are sent, have not. Ids of
jobs have become wider: a Slurm job's are sent as before, and older releases never meet another kind's."""


def released() -> set[str]:
    known = set()
    for line in RELEASED.read_text().splitlines():
        for old, new in RENAMED:
            line = line.replace(old, new)
        known.add(line)
    return known


def test_what_an_older_release_says_means_the_same_today() -> None:
    gone = released() - spoken()
    assert not gone, f"changed or gone, so that older releases are misunderstood: {sorted(gone)}"


def test_everything_that_is_said_today_is_on_record() -> None:
    new = spoken() - released()
    assert not new, f"new: add to {RELEASED.name}, and see that others do without it: {sorted(new)}"


def test_nothing_is_required_of_the_other_side() -> None:
    required = [
        field.full_name
        for file in files()
        for message in file.message_types_by_name.values()
        for field in message.fields
        if field.is_required
    ]
    assert required == []
