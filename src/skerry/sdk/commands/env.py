"""The environment that later commands of a sandbox get."""

from __future__ import annotations

from collections.abc import Mapping

from skerry.core import InvalidArgument
from skerry.sdk.commands.request import check_env_name, decode, encode, encode_env
from skerry.sdk.connection.link import Link
from skerry.wire import Env, EnvReply


class AsyncEnv:
    """Variables for every command that starts from now on. Values may hold any bytes but NUL, as surrogates."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._link.sandbox_id}>"

    async def set(self, name: str | Mapping[str, str], value: str | None = None) -> None:
        """Set one variable by name and value, or all of a mapping at once. Raises InvalidArgument."""
        if isinstance(name, str):
            if value is None:
                raise InvalidArgument(f"a value for {name} is missing")
            name = {name: value}
        elif value is not None:
            raise InvalidArgument("give a mapping, or a name and a value")
        await self._change(Env(set=encode_env(name)))

    async def get(self, name: str) -> str | None:
        """The value, or None where it is not set."""
        return (await self.all()).get(check_env_name(name))

    async def unset(self, *names: str) -> None:
        """Remove variables; one that is not set is ignored."""
        await self._change(Env(unset=tuple(encode(check_env_name(name), "the name") for name in names)))

    async def all(self) -> dict[str, str]:
        """Every variable."""
        return await self._change(Env())

    async def _change(self, message: Env) -> dict[str, str]:
        reply = await self._link.request(message, EnvReply)
        pairs = (decode(item).partition("=") for item in reply.env)
        return {name: value for name, _, value in pairs}
