"""The address and the network interface at which other nodes reach a node of the job.

All servers inside a job listen on that address only. Its interface is the one that the cluster uses for the
node.
"""

from __future__ import annotations

import socket

import psutil


class NoAddress(Exception):
    """A node's name or address does not lead to an interface of this host; the message says which."""


def resolve(host: str) -> str:
    """The IP address of `host`. IPv4 comes before IPv6, because Gloo picks its interfaces that way."""
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except OSError as error:
        raise NoAddress(f"the node address '{host}' cannot be resolved: {error}") from error
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def own_address(node_address: str, controller: str) -> str:
    """The IP address at which other nodes reach this node, whose address is `node_address` to the cluster.

    A node's own name may lead to its loopback interface (Debian's /etc/hosts gives it 127.0.1.1), where no
    other node reaches it. The result is then the address that this host has towards the cluster's controller.
    """
    address = resolve(node_address)
    if not address.startswith("127.") or node_address in (address, "localhost") or not controller:
        return address
    return towards(resolve(controller))


def towards(destination: str) -> str:
    """The address that this host uses to reach `destination`; nothing is sent. Raises NoAddress."""
    family = socket.AF_INET6 if ":" in destination else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((destination, 9))
        except OSError as error:
            raise NoAddress(f"no way from {socket.gethostname()} to {destination}: {error}") from error
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """The name of this host's interface that has `address`. Raises NoAddress if no interface has it."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.split("%")[0] == address for entry in addresses):
            return name
    if address.startswith("127."):
        return "lo"
    raise NoAddress(f"no network interface of {socket.gethostname()} has the address {address}")


def link_of(host: str) -> str:
    """The interface by which other hosts reach this one as `host`; "": none is known, or it is the loopback
    interface, which is no link."""
    try:
        name = interface_of(resolve(host))
    except NoAddress:
        return ""
    return "" if name == "lo" else name


def traffic(interface: str) -> tuple[int, int]:
    """Bytes that this interface has received and sent since it is there; (0, 0) if that is not known."""
    known = psutil.net_io_counters(pernic=True).get(interface) if interface else None
    return (known.bytes_recv, known.bytes_sent) if known is not None else (0, 0)
