"""Egress for sandboxes that ask for it: a point-to-point link, address translation, and a forwarder for names.

A sandbox reaches public addresses only: not this machine, not its private networks, not another sandbox. Names are
resolved by a small forwarder that listens on 127.0.0.53 inside the sandbox and asks this machine's resolvers from
outside; it runs in the sandbox's cgroup and ends with it. The rules stay while a sandbox uses them.
"""

from __future__ import annotations

import ipaddress
import json
import subprocess
from pathlib import Path
from typing import Any

from skerry.core import DOCUMENTATION, PRIVATE_IPV4, ProviderUnavailable
from skerry.providers.local.host import binary, program
from skerry.providers.local.locks import FileLock
from skerry.providers.local.sandbox.folders import RUN

POOL = ipaddress.ip_network("10.213.192.0/19")
PREFIX = "skv"
NEW_PER_SECOND, NEW_AT_ONCE, TRACKED = 50, 500, 2048
"""Connections that a sandbox may begin, steadily and at once, and may have: this machine tracks all connections,
its own among them, in one table, where a closed one stays for two minutes."""

_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


def _lock() -> FileLock:
    """Protects the rules: they exist whenever a link does."""
    return FileLock(RUN / "network.lock")


def require() -> None:
    """Raises ProviderUnavailable when this machine cannot give egress."""
    for name in ("nft", "ip", "nsenter"):
        program(name)
    binary("dns")


def attach(slot: int, pid: int, cgroup_files: list[Path]) -> None:
    """Connect the network namespace of process `pid`. Raises ProviderUnavailable."""
    device = _device(slot).name
    outside, inside = POOL[2 * slot], POOL[2 * slot + 1]
    with _lock():
        (RUN / "network").touch()
        if _FORWARDING.read_text().strip() != "1":
            _FORWARDING.write_text("1")
        _run([program("nft"), "-f", "-"], _rules())
        _run(
            [program("ip"), "-batch", "-"],
            f"link add {device} type veth peer name eth0 netns {pid}\n"
            f"addr add {outside}/31 dev {device}\n"
            f"link set {device} up\n",
        )
    _run(
        [program("nsenter"), f"--net=/proc/{pid}/ns/net", program("ip"), "-batch", "-"],
        f"addr add {inside}/31 dev eth0\nlink set eth0 up\nroute add default via {outside}\n",
    )
    joins = [f"join={file}" for file in cgroup_files]
    _run([binary("dns"), f"pid={pid}", *joins, *(f"server={server}" for server in _resolvers())], "")


def _rules() -> str:
    """The rules, for nft. Writing them again leaves the sets as they are: these hold what each sandbox has used."""
    routes = json.loads(_run([program("ip"), "-json", "-4", "route", "show"], ""))
    ranges = ", ".join(str(network) for network in refused(routes))
    begins = f'iifname "{PREFIX}*" ct status & confirmed == 0'
    return f"""
table inet skerry {{
    set begun {{ type ipv4_addr; size 16384; flags dynamic,timeout; timeout 1m; }}
    set tracked {{ type ipv4_addr; size 16384; flags dynamic; }}
    chain input {{ type filter hook input priority -10; policy accept; }}
    chain forward {{ type filter hook forward priority -10; policy accept; }}
    chain postrouting {{ type nat hook postrouting priority 100; policy accept; }}
}}
flush table inet skerry
table inet skerry {{
    chain input {{
        iifname "{PREFIX}*" drop
    }}
    chain forward {{
        iifname "{PREFIX}*" oifname "{PREFIX}*" drop
        iifname "{PREFIX}*" meta nfproto != ipv4 drop
        iifname "{PREFIX}*" ip saddr != {POOL} drop
        iifname "{PREFIX}*" ip daddr {{ {ranges} }} reject with icmpx admin-prohibited
        {begins} update @begun {{ ip saddr limit rate over {NEW_PER_SECOND}/second burst {NEW_AT_ONCE} packets }} drop
        {begins} add @tracked {{ ip saddr ct count over {TRACKED} }} drop
        oifname "{PREFIX}*" ct state != {{ established, related }} drop
    }}
    chain postrouting {{
        ip saddr {POOL} oifname != "{PREFIX}*" masquerade
    }}
}}
"""


def refused(routes: list[dict[str, Any]]) -> list[ipaddress.IPv4Network]:
    """What a sandbox cannot reach on a machine with these routes: private ranges, and the networks that the machine
    has an address in.

    A range reserved for examples counts as the Internet if the machine's own default route leads through it.
    """
    connected = [
        ipaddress.IPv4Network(route["dst"])
        for route in routes
        if route["dst"] != "default" and route.get("scope") == "link" and "prefsrc" in route
    ]
    ways_out = [
        ipaddress.IPv4Address(route["gateway"]) for route in routes if route["dst"] == "default" and "gateway" in route
    ]
    examples = any(way in network for way in ways_out for network in DOCUMENTATION)
    private = [network for network in PRIVATE_IPV4 if not (examples and network in DOCUMENTATION)]
    return list(ipaddress.collapse_addresses([*private, *connected]))


def _device(slot: int) -> Path:
    return Path(f"/sys/class/net/{PREFIX}{slot}")


def attached(slot: int) -> bool:
    """Whether the slot has a link, or one may have left rules behind."""
    return _device(slot).exists() or (RUN / "network").exists()


def detach(slot: int) -> None:
    """Remove the link, and with the last link the rules."""
    with _lock():
        if _device(slot).exists():
            try:
                _run([program("ip"), "link", "del", _device(slot).name], "")
            except ProviderUnavailable:
                if _device(slot).exists():  # the kernel may have just removed it with its other end
                    raise
        _tidy()


def tidy() -> None:
    """Remove rules that no link uses any more."""
    if (RUN / "network").exists():
        with _lock():
            _tidy()


def _tidy() -> None:
    if not any(Path("/sys/class/net").glob(f"{PREFIX}*")):
        _run([program("nft"), "-f", "-"], "table inet skerry {}\ndelete table inet skerry\n")
        (RUN / "network").unlink(missing_ok=True)


def _resolvers() -> list[str]:
    """This machine's name servers. Raises ProviderUnavailable."""
    servers = []
    for line in Path("/etc/resolv.conf").read_text().splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            try:
                address = ipaddress.ip_address(words[1])
            except ValueError:
                continue
            if address.version == 4:
                servers.append(str(address))
    if not servers:
        raise ProviderUnavailable("/etc/resolv.conf names no IPv4 name server", hint="add one, or use network='none'")
    return servers[:3]


def _run(command: list[str], text: str) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        what = Path(command[0]).name
        raise ProviderUnavailable(f"{what} could not set up the network: {done.stderr.strip()[:300]}")
    return done.stdout
