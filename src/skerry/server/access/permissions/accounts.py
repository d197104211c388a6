"""Rules of the routes of users, keys, projects, events and the server itself."""

from __future__ import annotations

from skerry.server.access.permissions.model import Action, Rule

_SELF, _ADMIN = Rule(Action.USER_SELF), Rule(Action.SERVER_ADMIN)
_TOKENS = Rule(Action.SANDBOX_ADMIN, "sandbox")
_PROJECT, _MANAGE = Rule(Action.PROJECT_READ, "project"), Rule(Action.PROJECT_MANAGE, "project")

_MINE = Rule(Action.USER_MANAGE)

RULES: dict[tuple[str, str], Rule] = {
    ("GET", "/health"): Rule(Action.OPEN),
    ("GET", "/metrics"): _ADMIN,
    ("GET", "/v1/server"): _SELF,
    # Sessions and the signed-in user
    ("GET", "/sign-in"): Rule(Action.OPEN),
    ("POST", "/v1/session"): Rule(Action.OPEN, body=16 << 10),
    ("GET", "/v1/session"): _SELF,
    ("DELETE", "/v1/session"): _SELF,
    ("DELETE", "/v1/sessions"): _MINE,
    ("PUT", "/v1/password"): _MINE,
    ("POST", "/v1/tickets"): _SELF,
    ("GET", "/v1/keys"): _SELF,
    ("POST", "/v1/keys"): _MINE,
    ("DELETE", "/v1/keys/{key}"): _MINE,
    # Users
    ("GET", "/v1/users"): _ADMIN,
    ("POST", "/v1/users"): _ADMIN,
    ("GET", "/v1/users/{user}"): _ADMIN,
    ("PATCH", "/v1/users/{user}"): _ADMIN,
    ("DELETE", "/v1/users/{user}"): _ADMIN,
    ("POST", "/v1/users/{user}/link"): _ADMIN,
    ("GET", "/v1/audit"): _ADMIN,
    # Projects
    ("GET", "/v1/projects"): Rule(Action.PROJECT_READ, "projects"),
    ("POST", "/v1/projects"): _MINE,
    ("GET", "/v1/projects/{project}"): _PROJECT,
    ("PATCH", "/v1/projects/{project}"): _MANAGE,
    ("DELETE", "/v1/projects/{project}"): _MANAGE,
    ("GET", "/v1/projects/{project}/members"): _PROJECT,
    ("PUT", "/v1/projects/{project}/members/{user}"): _MANAGE,
    ("DELETE", "/v1/projects/{project}/members/{user}"): _MANAGE,
    ("DELETE", "/v1/projects/{project}/membership"): _PROJECT,
    ("GET", "/v1/projects/{project}/audit"): _MANAGE,
    ("GET", "/v1/projects/{project}/webhooks"): _MANAGE,
    ("POST", "/v1/projects/{project}/webhooks"): _MANAGE,
    ("DELETE", "/v1/projects/{project}/webhooks/{webhook}"): _MANAGE,
    # Events and tokens
    ("GET", "/v1/events"): Rule(Action.SANDBOX_READ, "projects"),
    ("GET", "/v1/sandboxes/{sandbox}/events"): Rule(Action.SANDBOX_READ, "sandbox"),
    ("GET", "/v1/sandboxes/{sandbox}/tokens"): _TOKENS,
    ("POST", "/v1/sandboxes/{sandbox}/tokens"): _TOKENS,
    ("DELETE", "/v1/sandboxes/{sandbox}/tokens/{token}"): _TOKENS,
}
