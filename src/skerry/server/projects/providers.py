"""The providers of a server by name, and which one has a thing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from skerry.core import Provider, ProviderUnavailable


class Owned(Protocol):
    """What notes on which provider it is."""

    @property
    def provider(self) -> str: ...


class Providers(Mapping[str, Provider]):
    """The providers in the order in which a server asks them; the first one makes what names none."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        self._all = {provider.name: provider for provider in providers}
        self.default = providers[0]

    def __getitem__(self, name: str) -> Provider:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def of(self, item: Owned) -> Provider:
        """The provider that has a thing. Raises ProviderUnavailable if the server no longer has that provider."""
        if (found := self._all.get(item.provider)) is None:
            hint = f"it has {', '.join(self._all)}; add the provider again to the server's settings"
            raise ProviderUnavailable(f"this server has no provider {item.provider!r}", hint=hint)
        return found
