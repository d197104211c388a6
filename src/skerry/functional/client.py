"""Where the functions make sandboxes: on this machine or on a server."""

from __future__ import annotations

from skerry._model import Model
from skerry.core import Provider, registry
from skerry.http import Api, AsyncApi, Login, find_login


class SandboxClient(Model, kw_only=False):
    """Where sandboxes are made. `api` and `async_api` are the low-level HTTP clients of a server."""

    provider: Provider
    login: Login | None = None

    @property
    def api(self) -> Api:
        """A new HTTP client, which the caller closes. Raises Unauthenticated where there is no server."""
        return Api(self.login or find_login())

    @property
    def async_api(self) -> AsyncApi:
        """As `api`, for `await`."""
        return AsyncApi(self.login or find_login())


def create_client(
    *, api_key: str | None = None, api_url: str | None = None, target: str | None = None
) -> SandboxClient:
    """A client of a server, by default that of SKERRY_URL or `skerry login`; without any, of this machine.

    `target` is the project that new sandboxes belong to.

    Raises Unauthenticated for a key or a target without a server, InvalidArgument.
    """
    if api_url is None and api_key is None and target is None and registry.default() == "local":
        return SandboxClient(registry.provider("local"))
    login = find_login(api_url, api_key, target)
    return SandboxClient(registry.factory("remote")(login.url, api_key=login.key, project=login.project), login)
