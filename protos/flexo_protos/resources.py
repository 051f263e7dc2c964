"""Amounts of a node's resources: GPUs by type and share, other devices, CPUs and memory.

flexod and jobs calculate with this type, and send it to each other (message Resources in jobs.proto).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from flexo_protos.v1 import jobs_pb2

Amount = int | Fraction
"""Amount of a device: a whole number, or a fraction if several jobs share one."""

UNBOUNDED: Final = 1 << 30
"""The number of times that an empty amount fits into any amount."""


class BadAmount(ValueError):
    """A message Resources is no amount; the error says which part is wrong, and what is allowed."""


@dataclass(frozen=True, slots=True, order=True)
class Devices:
    """Devices that a cluster counts beside its GPUs, such as a second resource on the same GPUs."""

    name: str
    type: str = ""
    """Type of the devices; "" in a request: any type."""
    amount: Amount = 1


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of a node, of a job, or of a worker."""

    gpus: Amount = 0
    cpus: int = 0
    memory_mib: int = 0
    """Memory in MiB; 0 in a request: the cluster's default applies."""
    gpu_type: str = ""
    """GPU type; "" in a request: any type; "" of a node: it has no type, or several."""
    devices: tuple[Devices, ...] = ()

    def __add__(self, other: Resources) -> Resources:
        """The sum, with the left one's GPU type, if it has one: GPUs given back to a node are of its type."""
        return Resources(
            self.gpus + other.gpus,
            self.cpus + other.cpus,
            self.memory_mib + other.memory_mib,
            self.gpu_type or other.gpu_type,
            _joined(self.devices, other.devices) if other.devices else self.devices,
        )

    def __mul__(self, times: int) -> Resources:
        return Resources(
            self.gpus * times,
            self.cpus * times,
            self.memory_mib * times,
            self.gpu_type,
            tuple(replace(each, amount=each.amount * times) for each in self.devices) if self.devices else (),
        )

    def minus(self, other: Resources) -> Resources:
        """The difference. It is never below zero, because others may have taken more meanwhile."""
        return Resources(
            max(0, self.gpus - other.gpus),
            max(0, self.cpus - other.cpus),
            max(0, self.memory_mib - other.memory_mib),
            self.gpu_type,
            _left(self.devices, other.devices) if self.devices and other.devices else self.devices,
        )

    def holds(self, unit: Resources) -> int:
        """Number of times that `unit` fits in; `UNBOUNDED` if `unit` is empty."""
        if unit.gpu_type and unit.gpu_type != self.gpu_type and unit.gpus:
            return 0
        fits = UNBOUNDED
        if unit.gpus:
            fits = self.gpus // unit.gpus
        if unit.cpus:
            fits = min(fits, self.cpus // unit.cpus)
        if unit.memory_mib:
            fits = min(fits, self.memory_mib // unit.memory_mib)
        for each in unit.devices:
            fits = min(fits, _count(self.devices, each) // each.amount)
        return fits

    def share(self, parts: int) -> Resources:
        """One of `parts` equal parts. Whole amounts are rounded up; only fractions are cut further."""
        parts = max(1, parts)
        return Resources(
            _part(self.gpus, parts),
            rounded_up(self.cpus, parts),
            rounded_up(self.memory_mib, parts),
            self.gpu_type,
            tuple(replace(each, amount=_part(each.amount, parts)) for each in self.devices),
        )

    def gpus_of_each(self, workers: int) -> Amount:
        """GPUs of one of `workers` workers: whole GPUs, with the remainder unused, or a share of a share."""
        return self.gpus // workers if isinstance(self.gpus, int) else _whole(self.gpus / workers)

    @property
    def plain(self) -> bool:
        """Whether it has only whole GPUs, CPUs and memory: releases before this type know nothing else."""
        return not self.devices and Fraction(self.gpus).denominator == 1

    def of_any_type(self) -> Resources:
        """The same resources with GPUs of any type."""
        return replace(self, gpu_type="") if self.gpu_type else self


def rounded_up(amount: Amount, parts: int) -> int:
    """One of `parts` equal parts of `amount`, rounded up to a whole number."""
    return -(-amount // max(1, parts))


def total(amounts: Iterable[Amount]) -> Amount:
    """The sum of all amounts."""
    together: Amount = 0
    for each in amounts:
        together += each
    return together


def as_number(amount: Amount) -> int | float:
    """`amount` as a plain number for JSON and people: 3, 0.5."""
    whole = int(amount)
    return whole if whole == amount else float(amount)


def amount(text: int | str) -> Amount:
    """Parse an amount: `"3"`, `"1/2"` -> 3, Fraction(1, 2). Raises ValueError."""
    return _amount(*Fraction(text).as_integer_ratio())


def as_texts(devices: Iterable[Devices]) -> list[list[str]]:
    """Name, type and amount of each of `devices`, for JSON."""
    return [[each.name, each.type, str(each.amount)] for each in devices]


def of_texts(texts: Iterable[Iterable[str]]) -> tuple[Devices, ...]:
    """The devices that `as_texts` has written as `texts`. Raises ValueError."""
    return tuple(Devices(name, kind, amount(many)) for name, kind, many in texts)


def to_message(resources: Resources) -> jobs_pb2.Resources:
    """The message for `resources`. GPUs are a whole number if they are whole, else parts of one size."""
    share = Fraction(resources.gpus)
    return jobs_pb2.Resources(
        gpus=share.numerator,
        gpu_parts=share.denominator if share.denominator > 1 else 0,
        cpus=resources.cpus,
        memory_mib=resources.memory_mib,
        gpu_type=resources.gpu_type,
        devices=[_device_message(each) for each in resources.devices],
    )


def of_message(message: jobs_pb2.Resources) -> Resources:
    """The resources in a message. Raises BadAmount if a device is named twice, or lacks a name or amount."""
    devices = tuple(
        sorted(Devices(each.name, each.type, _amount(each.count, each.parts)) for each in message.devices)
    )
    kinds = [(each.name, each.type) for each in devices]
    if len(set(kinds)) < len(kinds) or not all(each.name and each.amount for each in devices):
        raise BadAmount(f"devices {kinds}: each has a name and an amount, and no two are of one kind")
    return Resources(
        _amount(message.gpus, message.gpu_parts),
        message.cpus,
        message.memory_mib,
        message.gpu_type,
        devices,
    )


def _device_message(devices: Devices) -> jobs_pb2.Devices:
    share = Fraction(devices.amount)
    parts = share.denominator if share.denominator > 1 else 0
    return jobs_pb2.Devices(name=devices.name, type=devices.type, count=share.numerator, parts=parts)


def _part(amount: Amount, parts: int) -> Amount:
    return rounded_up(amount, parts) if isinstance(amount, int) else _whole(amount / parts)


def _whole(share: Fraction) -> Amount:
    return share.numerator if share.denominator == 1 else share


def _amount(count: int, parts: int) -> Amount:
    return _whole(Fraction(count, parts or 1))


def _joined(some: Iterable[Devices], others: Iterable[Devices]) -> tuple[Devices, ...]:
    amounts: dict[tuple[str, str], Amount] = {}
    for each in (*some, *others):
        amounts[each.name, each.type] = amounts.get((each.name, each.type), 0) + each.amount
    return tuple(Devices(name, kind, amount) for (name, kind), amount in sorted(amounts.items()))


def _left(some: tuple[Devices, ...], taken: Iterable[Devices]) -> tuple[Devices, ...]:
    """`some` without `taken`. Devices taken without a type come from the first types that have some."""
    amounts = {(each.name, each.type): each.amount for each in some}
    for each in sorted(taken, key=lambda one: not one.type):
        missing = each.amount
        for name, kind in amounts:
            if name == each.name and each.type in ("", kind):
                gone = min(missing, amounts[name, kind])
                amounts[name, kind] -= gone
                missing -= gone
    return tuple(Devices(name, kind, amount) for (name, kind), amount in amounts.items() if amount)


def _count(some: Iterable[Devices], wanted: Devices) -> Amount:
    return sum(each.amount for each in some if each.name == wanted.name and wanted.type in ("", each.type))
