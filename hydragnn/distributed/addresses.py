"""Addresses at which ranks of a run reach each other."""

import ipaddress
import socket
from collections.abc import Sequence
from contextlib import suppress

import psutil

from hydragnn.distributed.launch import Launch, LaunchError, host_name

LOOPBACK = "127.0.0.1"
_ANY_PORT = 9  # no packet is sent: connecting a datagram socket only asks the kernel for its route


def address_of_job(launch: Launch, peers: Sequence[str] = ()) -> str:
    """Return the address of this node that peers reach.

    That of ``GLOO_SOCKET_IFNAME`` where the user set it; else what the node's name resolves to (the scheduler's name
    first), unless that is the loopback; else the address from which the route to a peer starts; else the loopback.
    LaunchError where this node does not have the interface.
    """
    if launch.interface:
        return _address_of_interface(launch.interface)
    named = (address for name in (launch.node, host_name()) for address in _addresses(name))
    routed = (route_to(peer) for peer in peers)
    ours = set(_interfaces())
    return next((one for one in (*named, *routed) if one in ours and not _is_loopback(one)), LOOPBACK)


def route_to(peer: str) -> str:
    """Return this node's source address towards a peer, or ""."""
    with suppress(OSError):
        family, kind, _, _, target = socket.getaddrinfo(peer, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    return ""


def interface_of(address: str) -> str:
    """Return the interface that has an address, or "".

    >>> interface_of("192.0.2.255")
    ''
    """
    interfaces = _interfaces()
    return interfaces.get(address, interfaces.get(LOOPBACK, "") if _is_loopback(address) else "")


def _interfaces() -> dict[str, str]:
    """Every address of this node with the name of its interface."""
    table = psutil.net_if_addrs().items()
    internet = (socket.AF_INET, socket.AF_INET6)
    return {
        entry.address.partition("%")[0]: name for name, all_of in table for entry in all_of if entry.family in internet
    }


def _address_of_interface(name: str) -> str:
    matches = [address for address, interface in _interfaces().items() if interface == name]
    if not matches:
        names = ", ".join(sorted(set(_interfaces().values())))
        raise LaunchError(f"GLOO_SOCKET_IFNAME is {name}, but {host_name()} has {names}; name one of these or unset it")
    return matches[0]


def _addresses(name: str) -> list[str]:
    """Return the addresses of a name, or none."""
    with suppress(OSError):
        return [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)] if name else []
    return []


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
