"""Who may do what: one combined table for routes and streams, and one check."""

from skerry.server.access.permissions import accounts, sandboxes, streams
from skerry.server.access.permissions.model import ADMIN, MAKER, ROLES, SCOPES, SIGNED_IN, Action, On, Role, Rule, Scope
from skerry.server.access.permissions.streams import OPENERS, SLACK, action_of

ROUTES: dict[tuple[str, str], Rule] = {**accounts.RULES, **sandboxes.RULES, **streams.RULES}
"""By method, or "WS" for a WebSocket, and path template. `HEAD` is as `GET`."""

__all__ = [
    "ADMIN",
    "MAKER",
    "OPENERS",
    "ROLES",
    "ROUTES",
    "SCOPES",
    "SIGNED_IN",
    "SLACK",
    "Action",
    "On",
    "Role",
    "Rule",
    "Scope",
    "action_of",
]
