"""Rules of the provider contract over HTTP.

Everybody uses layers and templates, and nobody verifies the digest that a layer's builder gives: so only
administrators may make them.
"""

from __future__ import annotations

from skerry.server.access.permissions.model import Action, Rule

_BASE = "/v1/provider"
_ONE = f"{_BASE}/sandboxes/{{sandbox}}"
_READ, _WRITE = Rule(Action.SANDBOX_READ, "sandbox"), Rule(Action.SANDBOX_WRITE, "sandbox")
_END = Rule(Action.SANDBOX_DESTROY, "sandbox")
_LARGE = 8 << 20
_TEMPLATES, _SERVER = Rule(Action.TEMPLATE_READ), Rule(Action.SERVER_ADMIN)

RULES: dict[tuple[str, str], Rule] = {
    ("GET", _BASE): Rule(Action.USER_SELF),
    ("GET", f"{_BASE}/openapi.json"): Rule(Action.OPEN),
    ("POST", f"{_BASE}/sandboxes"): Rule(Action.SANDBOX_WRITE, "project", body=_LARGE),
    ("GET", f"{_BASE}/sandboxes"): Rule(Action.SANDBOX_READ, "projects"),
    ("GET", _ONE): _READ,
    ("DELETE", _ONE): _END,
    ("GET", f"{_ONE}/usage"): _READ,
    ("GET", f"{_ONE}/events"): _READ,
    ("POST", f"{_ONE}/deadline"): _WRITE,
    ("POST", f"{_ONE}/lease"): _END,  # it ends with the client that holds it
    ("PUT", f"{_BASE}/holders/{{holder}}"): Rule(Action.USER_SELF, audit=False),
    ("POST", f"{_ONE}/limits"): _WRITE,
    ("POST", f"{_ONE}/stop"): _WRITE,
    ("POST", f"{_ONE}/start"): _WRITE,
    ("POST", f"{_ONE}/restart"): Rule(Action.SANDBOX_WRITE, "sandbox", body=_LARGE),
    ("POST", f"{_ONE}/reset"): _WRITE,
    ("POST", f"{_ONE}/recover"): _WRITE,
    ("POST", f"{_ONE}/pause"): _WRITE,
    ("POST", f"{_ONE}/resume"): _WRITE,
    ("POST", f"{_ONE}/archive"): _WRITE,
    ("POST", f"{_ONE}/unarchive"): _WRITE,
    ("POST", f"{_ONE}/snapshots"): Rule(Action.SNAPSHOT_WRITE, "sandbox"),
    ("POST", f"{_ONE}/restore"): _WRITE,
    ("GET", f"{_ONE}/state"): Rule(Action.SANDBOX_WRITE, "sandbox", audit=True),
    ("POST", f"{_BASE}/states"): Rule(Action.SANDBOX_WRITE, "project", body=None),
    ("GET", f"{_BASE}/snapshots"): Rule(Action.SNAPSHOT_READ, "projects"),
    ("GET", f"{_BASE}/snapshots/{{snapshot}}"): Rule(Action.SNAPSHOT_READ, "snapshot"),
    ("GET", f"{_BASE}/snapshots/{{snapshot}}/state"): Rule(Action.SNAPSHOT_WRITE, "snapshot", audit=True),
    ("DELETE", f"{_BASE}/snapshots/{{snapshot}}"): Rule(Action.SNAPSHOT_WRITE, "snapshot"),
    ("POST", f"{_BASE}/volumes"): Rule(Action.VOLUME_WRITE, "project"),
    ("GET", f"{_BASE}/volumes"): Rule(Action.VOLUME_READ, "projects"),
    ("GET", f"{_BASE}/volumes/{{volume}}"): Rule(Action.VOLUME_READ, "volume"),
    ("DELETE", f"{_BASE}/volumes/{{volume}}"): Rule(Action.VOLUME_WRITE, "volume"),
    ("GET", f"{_BASE}/templates"): _TEMPLATES,
    ("GET", f"{_BASE}/templates/{{template:path}}"): _TEMPLATES,
    ("DELETE", f"{_BASE}/templates/{{template:path}}"): Rule(Action.TEMPLATE_REMOVE),
    ("POST", f"{_BASE}/templates"): _SERVER,
    ("GET", f"{_BASE}/layers/{{digest}}"): _TEMPLATES,
    ("WS", f"{_BASE}/layers/{{digest}}/building"): _SERVER,
    ("POST", f"{_ONE}/commit"): Rule(Action.SERVER_ADMIN, "sandbox"),
    ("POST", f"{_BASE}/sweep"): _SERVER,
}
