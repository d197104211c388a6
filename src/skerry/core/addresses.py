"""Addresses outside the public Internet, which neither sandboxes with a network nor webhooks reach."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

DOCUMENTATION = tuple(IPv4Network(text) for text in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"))
"""Networks that only examples have, and machines in laboratories."""

PRIVATE_IPV4 = (
    *(
        IPv4Network(text)
        for text in (
            "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.88.99.0/24"
            " 192.168.0.0/16 198.18.0.0/15 224.0.0.0/3"
            # a public address at which Azure answers its own machines, like 169.254.169.254 elsewhere
            " 168.63.129.16/32"
        ).split()
    ),
    *DOCUMENTATION,
)

PRIVATE_IPV6 = tuple(
    # all but global unicast, 2000::/3, and of that what carries an IPv4 address inside
    IPv6Network(text)
    for text in "::/3 4000::/2 8000::/1 2001::/23 2001:db8::/32 2002::/16".split()
)


def is_public(text: str) -> bool:
    """Whether an address, with or without a zone, is outside every private and special range. Raises ValueError."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if isinstance(address, IPv6Address):
        return not any(address in network for network in PRIVATE_IPV6)
    return not any(address in network for network in PRIVATE_IPV4)
