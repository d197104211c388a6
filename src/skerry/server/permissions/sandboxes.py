"""Rules of the routes of sandboxes, and of what belongs to them."""

from __future__ import annotations

from skerry.server.permissions.model import Action, Rule

_READ, _WRITE = Rule(Action.SANDBOX_READ, "sandbox"), Rule(Action.SANDBOX_WRITE, "sandbox")
_END = Rule(Action.SANDBOX_ADMIN, "sandbox")

RULES: dict[tuple[str, str], Rule] = {
    ("GET", "/v1/sandboxes"): Rule(Action.SANDBOX_READ, "projects"),
    ("POST", "/v1/sandboxes"): Rule(Action.SANDBOX_WRITE, "project"),
    ("GET", "/v1/sandboxes/{sandbox}"): _READ,
    ("DELETE", "/v1/sandboxes/{sandbox}"): _END,
}
