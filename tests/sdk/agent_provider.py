"""The example provider for tests that do not care about isolation: it takes what it cannot honour as if it could."""

from __future__ import annotations

from dataclasses import replace

from examples.memory_provider import AGENT, MemoryProvider
from skerry.core.models import Resources, SandboxInfo, SandboxSpec

__all__ = ["AGENT", "AgentProvider"]


class AgentProvider(MemoryProvider):
    name = "agent"

    async def create(self, spec: SandboxSpec) -> SandboxInfo:
        return await super().create(replace(spec, network="open", resources=Resources()))
