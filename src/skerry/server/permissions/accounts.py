"""Rules of the routes of users, keys, projects, events and the server itself."""

from __future__ import annotations

from skerry.server.permissions.model import Action, Rule

_SELF, _ADMIN = Rule(Action.USER_SELF), Rule(Action.SERVER_ADMIN)
_PROJECT, _MANAGE = Rule(Action.PROJECT_READ, "project"), Rule(Action.PROJECT_MANAGE, "project")

RULES: dict[tuple[str, str], Rule] = {
    ("GET", "/health"): Rule(Action.OPEN),
    ("GET", "/metrics"): _ADMIN,
    ("GET", "/v1/server"): _SELF,
}
