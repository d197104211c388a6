"""Rules of the routes of sandboxes and of the things that belong to them."""

from __future__ import annotations

from skerry.server.access.permissions.model import Action, Rule

S = "/v1/sandboxes/{sandbox}"
_READ, _WRITE = Rule(Action.SANDBOX_READ, "sandbox"), Rule(Action.SANDBOX_WRITE, "sandbox")
_END = Rule(Action.SANDBOX_DESTROY, "sandbox")
_LOOK = Rule(Action.SANDBOX_READ, "sandbox", audit=False)
"""A POST that changes nothing."""
_STREAM = Rule(Action.SANDBOX_WRITE, "sandbox", body=None)
_INPUT = Rule(Action.SANDBOX_WRITE, "sandbox", body=12 << 20)
"""8 MiB of input, in base64."""
_OPEN = Rule(Action.OPEN)

_READS = ("", "/status", "/ready", "/usage", "/health", "/wait", "/ports", "/ports/{port}/wait", "/watch")
_FILES_READ = ("", "/stat", "/list", "/glob", "/hash")
_FILES_WRITE = ("/mkdir", "/rename", "/copy", "/chmod", "/chown", "/symlink", "/replace")
_JOBS = ("", "/{id}", "/{id}/output", "/{id}/wait")
_CHANGES = ("/stop", "/start", "/restart", "/pause", "/resume", "/archive", "/recover", "/reset")

RULES: dict[tuple[str, str], Rule] = {
    ("GET", "/v1/sandboxes"): Rule(Action.SANDBOX_READ, "projects"),
    ("POST", "/v1/sandboxes"): Rule(Action.SANDBOX_WRITE, "project"),
    ("PATCH", S): _WRITE,
    ("DELETE", S): _END,
    ("PATCH", f"{S}/limits"): _WRITE,
    **{("GET", f"{S}{path}"): _READ for path in _READS},
    **{("POST", f"{S}{path}"): _WRITE for path in _CHANGES},
    # A copy belongs to the project: a sandbox's own token cannot make one.
    **{("POST", f"{S}/{path}"): Rule(Action.SNAPSHOT_WRITE, "sandbox") for path in ("clone", "fork")},
    # These run commands inside.
    ("POST", f"{S}/health"): _WRITE,
    ("GET", f"{S}/instructions"): _WRITE,
    ("POST", f"{S}/exec"): _INPUT,
    ("POST", f"{S}/code"): _WRITE,
    **{("GET", f"{S}/{kind}{path}"): _READ for kind in ("processes", "terminals") for path in _JOBS},
    **{("POST", f"{S}/{kind}"): _WRITE for kind in ("processes", "terminals")},
    **{("DELETE", f"{S}/{kind}/{{id}}"): _WRITE for kind in ("processes", "terminals")},
    ("POST", f"{S}/processes/{{id}}/stdin"): _INPUT,
    ("POST", f"{S}/processes/{{id}}/signal"): _WRITE,
    ("POST", f"{S}/terminals/{{id}}/input"): _INPUT,
    ("POST", f"{S}/terminals/{{id}}/resize"): _WRITE,
    **{("GET", f"{S}/files{path}"): _READ for path in _FILES_READ},
    **{("POST", f"{S}/files{path}"): _WRITE for path in _FILES_WRITE},
    ("POST", f"{S}/files/search"): _LOOK,
    ("PUT", f"{S}/files"): _STREAM,
    ("POST", f"{S}/files/append"): _STREAM,
    ("DELETE", f"{S}/files"): _WRITE,
    ("POST", f"{S}/files/url"): _WRITE,
    ("GET", f"{S}/directories"): _READ,
    ("PUT", f"{S}/directories"): _STREAM,
    # Values of variables may be secrets: readers do not see them (but see docs/design/security.md).
    ("GET", f"{S}/env"): _WRITE,
    ("PATCH", f"{S}/env"): _WRITE,
    **{("GET", f"{S}/git/{path}"): _WRITE for path in ("status", "branches", "log", "diff")},
    **{
        ("POST", f"{S}/git/{path}"): _WRITE
        for path in ("clone", "add", "commit", "push", "pull", "branches", "checkout")
    },
    ("DELETE", f"{S}/git/branches"): _WRITE,
    ("GET", f"{S}/snapshots"): Rule(Action.SNAPSHOT_READ, "sandbox"),
    ("GET", f"{S}/snapshots/tree"): Rule(Action.SNAPSHOT_READ, "sandbox"),
    ("POST", f"{S}/snapshots"): Rule(Action.SNAPSHOT_WRITE, "sandbox"),
    ("POST", f"{S}/restore"): _WRITE,
    ("GET", "/v1/snapshots"): Rule(Action.SNAPSHOT_READ, "projects"),
    ("GET", "/v1/snapshots/tree"): Rule(Action.SNAPSHOT_READ, "projects"),
    ("GET", "/v1/snapshots/{snapshot}"): Rule(Action.SNAPSHOT_READ, "snapshot"),
    ("DELETE", "/v1/snapshots/{snapshot}"): Rule(Action.SNAPSHOT_WRITE, "snapshot"),
    # An export contains the variables.
    ("POST", f"{S}/export"): _WRITE,
    ("POST", "/v1/snapshots/{snapshot}/export"): Rule(Action.SNAPSHOT_WRITE, "snapshot"),
    ("POST", "/v1/states"): Rule(Action.SANDBOX_WRITE, "project", body=None),
    ("GET", "/v1/volumes"): Rule(Action.VOLUME_READ, "projects"),
    ("POST", "/v1/volumes"): Rule(Action.VOLUME_WRITE, "project"),
    ("GET", "/v1/volumes/{volume}"): Rule(Action.VOLUME_READ, "volume"),
    ("DELETE", "/v1/volumes/{volume}"): Rule(Action.VOLUME_WRITE, "volume"),
    ("GET", "/v1/templates"): Rule(Action.TEMPLATE_READ),
    ("GET", "/v1/templates/{template}"): Rule(Action.TEMPLATE_READ),
    ("POST", "/v1/templates"): Rule(Action.TEMPLATE_BUILD),
    ("DELETE", "/v1/templates/{template}"): Rule(Action.TEMPLATE_REMOVE),
    # The route checks the signature in the URL, and that its maker may still do this.
    ("GET", "/v1/signed/{sandbox_id}"): _OPEN,
    ("PUT", "/v1/signed/{sandbox_id}"): Rule(Action.OPEN, body=None),
    ("GET", "/docs"): _OPEN,
    ("GET", "/docs/"): _OPEN,
    ("GET", "/docs/{asset}"): _OPEN,
    ("GET", "/openapi.json"): _OPEN,
}
