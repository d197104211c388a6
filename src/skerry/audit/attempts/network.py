"""Attempts to reach what a sandbox's network must not lead to."""

from __future__ import annotations

from skerry.audit.attempt import UNREACHABLE, Attempt, Need

_HOST = "Code inside talks to services of the machine."
_PRIVATE = "Code inside talks to machines of the private network around it, which often trust each other."
_METADATA = "Code inside asks the cloud for the keys of the machine it runs on."
_OUT = "Code inside sends what it finds to somebody outside."
_OTHER = "Code inside talks to another sandbox."

_GATEWAY = """
def gateways():
    for line in open("/proc/net/route").read().splitlines()[1:]:
        words = line.split()
        if words[1] == "00000000":
            yield socket.inet_ntoa(int(words[2], 16).to_bytes(4, "little"))
found = list(gateways())
if not found:
    raise OSError(errno.ENETUNREACH, "no way out")
return reach([(host, given["port"]) for host in found])
"""
_INTERFACES = """
names = [name for _, name in socket.if_nameindex() if name not in ("lo", "tunl0", "sit0", "ip6tnl0")]
if names:
    return names
raise NoEffect("only lo")
"""
_DATAGRAM = """
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    client.sendto(b"x", ("203.0.113.1", 53))
return "sent"
"""


def _reach(name: str, means: str, targets: str, *needs: Need, silence: bool = False) -> Attempt:
    return Attempt(
        name=name,
        means=means,
        body=f"return reach({targets})",
        denied=UNREACHABLE,
        needs=frozenset(needs),
        silence=silence,
    )


_OWN_LOOPBACK = UNREACHABLE | {"ECONNREFUSED"}
"""127.0.0.1 is the sandbox's own, where nothing listens."""

NETWORK = (
    *(
        Attempt(
            name=f"connect to a port of the machine on {address}",
            means=_HOST,
            body=f'return connect("{address}", given["port"])',
            denied=_OWN_LOOPBACK,
            needs=frozenset({"host"}),
        )
        for address in ("127.0.0.1", "::1")
    ),
    Attempt(
        name="see another interface than loopback",
        means="The sandbox has a network although it was to have none.",
        body=_INTERFACES,
        denied=UNREACHABLE,
        needs=frozenset({"none"}),
    ),
    _reach("connect to a public address", _OUT, '[("203.0.113.1", 80)]', "none"),
    Attempt(
        name="send a datagram to a public address",
        means=_OUT,
        body=_DATAGRAM,
        denied=UNREACHABLE,
        needs=frozenset({"none"}),
    ),
    _reach("connect to the cloud's metadata address", _METADATA, '[("169.254.169.254", 80), ("168.63.129.16", 80)]'),
    _reach(
        "connect to private addresses",
        _PRIVATE,
        '[(host, 80) for host in ("10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "198.18.0.1")]',
    ),
    Attempt(
        name="connect to the machine by the sandbox's gateway",
        means=_HOST,
        body=_GATEWAY,
        denied=UNREACHABLE,
        needs=frozenset({"host", "open"}),
        silence=True,
    ),
    _reach(
        "connect to the machine by its own addresses",
        _HOST,
        '[(host, given["port"]) for host in given["addresses"]]',
        *("host", "open"),
        silence=True,
    ),
    _reach(
        "connect to another sandbox by its address",
        _OTHER,
        '[(host, given["neighbour"]["port"]) for host in given["neighbour"]["addresses"]]',
        *("neighbour", "open"),
        silence=True,
    ),
)
