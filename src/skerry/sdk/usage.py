"""What a sandbox uses: what its provider measures, and what its agent sees."""

from __future__ import annotations

import dataclasses

from skerry.core import Corrupted, Usage
from skerry.sdk.connection.link import Link
from skerry.wire import Stats, StatsReply


async def measure(link: Link) -> Usage:
    """The provider's figures; the agent's where the provider has none."""
    usage = await link.provider.usage(link.sandbox_id)
    inside = await link.request(Stats(), StatsReply)
    if min(inside.disk_used, inside.disk_total, inside.net_rx, inside.net_tx) < 0:
        raise Corrupted(f"the agent of {link.sandbox_id} reports negative usage")
    return dataclasses.replace(
        usage,
        disk_used=inside.disk_used if usage.disk_used is None else usage.disk_used,
        disk_total=inside.disk_total if usage.disk_total is None else usage.disk_total,
        network_rx=usage.network_rx or inside.net_rx,
        network_tx=usage.network_tx or inside.net_tx,
    )
