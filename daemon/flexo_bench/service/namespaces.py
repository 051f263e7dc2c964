"""Network namespaces of this machine, joined by a switch over links of a given rate. Only root can make them.

Nothing of the machine's own network is touched: the switch has a namespace of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flexo_bench.service.setting import PartMissing

INTERFACE = "eth0"
"""The interface in each namespace."""
_SUBNET, _SWITCH_HOST = "10.99.0", 254
_BURST, _LATENCY = "64kb", "50ms"
"""The token bucket filter's: how much may pass at once, and how long the rest may wait at most."""
_CLONE_NEWNET = 0x40000000
_FOLDER = Path("/var/run/netns")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Namespace:
    """One namespace, with its address."""

    name: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """The beginning of a command that runs in it."""
        return ("ip", "netns", "exec", self.name)

    @property
    def enter(self) -> Callable[[], None]:
        """Moves the thread that calls it there, and all that this thread starts from then on."""
        return functools.partial(_enter, self.name)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a host has sent and received, with those of packets' headers."""

    sent: int
    received: int

    def __sub__(self, before: Traffic) -> Traffic:
        return Traffic(self.sent - before.sent, self.received - before.received)


@dataclass(frozen=True, slots=True)
class Network:
    """Namespaces at the ports of a switch."""

    hosts: tuple[Namespace, ...]
    switch: Namespace

    @contextlib.contextmanager
    def at_switch(self) -> Iterator[None]:
        """Sockets that this thread makes meanwhile are the switch's: all hosts reach them."""
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            self.switch.enter()
            yield
        finally:
            _set(own)
            os.close(own)

    def set_rate(self, number: int, rate: str) -> None:
        """Give the link of this host another rate, in both directions."""
        _shape(self.hosts[number], INTERFACE, "change", rate)
        _shape(self.switch, f"port{number}", "change", rate)

    def traffic(self) -> list[Traffic]:
        """What has crossed each host's link so far."""
        show = ("ip", "-n", self.switch.name, "-s", "-j", "link")
        told = subprocess.run(show, check=True, capture_output=True, text=True)
        found = {link["ifname"]: link["stats64"] for link in json.loads(told.stdout)}
        ports = [found[f"port{number}"] for number in range(len(self.hosts))]
        return [Traffic(int(port["rx"]["bytes"]), int(port["tx"]["bytes"])) for port in ports]


@contextlib.contextmanager
def network(count: int, rate: str) -> Iterator[Network]:
    """So many namespaces, each with a link of that rate in both directions; none is left afterwards.

    Raises PartMissing if this machine does not allow it.
    """
    if os.geteuid() != 0:
        raise PartMissing("only root can make network namespaces")
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise PartMissing(f"`{program}` is not installed (package iproute2)")
    _remove_left_over()
    own = f"flexo-bench-{os.getpid()}"
    hosts = tuple(Namespace(f"{own}-{number}", f"{_SUBNET}.{number + 1}") for number in range(count))
    switch = Namespace(f"{own}-switch", f"{_SUBNET}.{_SWITCH_HOST}")
    try:
        try:
            _connect(hosts, switch, rate)
        except subprocess.CalledProcessError as error:
            reason = error.stderr.strip()
            raise PartMissing(f"`{' '.join(error.cmd)}` is not allowed here: {reason}") from error
        yield Network(hosts, switch)
    finally:
        for each in (*hosts, switch):
            _remove(each.name)


def _connect(hosts: tuple[Namespace, ...], switch: Namespace, rate: str) -> None:
    _run("ip", "netns", "add", switch.name)
    at_switch = ("ip", "-n", switch.name)
    _run(*at_switch, "link", "add", "bridge", "type", "bridge")
    _run(*at_switch, "addr", "add", f"{switch.address}/24", "dev", "bridge")
    _run(*at_switch, "link", "set", "bridge", "up")
    _run(*at_switch, "link", "set", "lo", "up")
    for number, host in enumerate(hosts):
        port, at_host = f"port{number}", ("ip", "-n", host.name)
        _run("ip", "netns", "add", host.name)
        _run(*at_host, "link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", switch.name)
        _run(*at_host, "addr", "add", f"{host.address}/24", "dev", INTERFACE)
        for device in (INTERFACE, "lo"):
            _run(*at_host, "link", "set", device, "up")
        _run(*at_switch, "link", "set", port, "master", "bridge", "up")
        _shape(host, INTERFACE, "add", rate)
        _shape(switch, port, "add", rate)


def _shape(where: Namespace, device: str, how: str, rate: str) -> None:
    """Have the device send at this rate at most."""
    shape = ("root", "tbf", "rate", rate, "burst", _BURST, "latency", _LATENCY)
    _run("tc", "-n", where.name, "qdisc", how, "dev", device, *shape)


def _remove_left_over() -> None:
    """Remove the namespaces of a benchmark that was killed."""
    for path in _FOLDER.glob("flexo-bench-*"):
        found = re.fullmatch(r"flexo-bench-(\d+)-\w+", path.name)
        if found and not Path("/proc", found[1]).exists():
            _remove(path.name)


def _remove(name: str) -> None:
    if (_FOLDER / name).exists():
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _enter(name: str) -> None:
    descriptor = os.open(_FOLDER / name, os.O_RDONLY)
    try:
        _set(descriptor)
    finally:
        os.close(descriptor)


def _set(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter the network namespace: {os.strerror(number)}")
