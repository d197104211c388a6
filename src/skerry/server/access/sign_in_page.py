"""The page of one-time links: it sends the secret after the # of its address, and forgets it."""

from __future__ import annotations

import base64
import hashlib

_SCRIPT = """
const text = location.hash.slice(1), say = document.querySelector("p");
history.replaceState(null, "", location.pathname);
if (text) {
  const headers = {"content-type": "application/json"}, body = JSON.stringify({link: text});
  fetch("/v1/session", {method: "POST", headers, body})
    .then(async answer => {
      const told = await answer.json();
      say.textContent = answer.ok ? `Signed in as ${told.user}.` : told.detail;
      if (answer.ok) location.replace("/docs");
    })
    .catch(() => { say.textContent = "The server does not answer."; });
} else {
  say.textContent = "This sign-in link is incomplete. Copy all of it, including the part after the #.";
}
"""

_STYLE = "body{font:1rem/1.5 system-ui,sans-serif;display:grid;place-content:center;min-height:90vh}"

HTML = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Skerry: sign in</title>
<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>
<h1>Skerry</h1><p role="status">Signing in …</p><noscript>This page needs JavaScript.</noscript>
<script>{_SCRIPT}</script></html>
"""


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; script-src {_source(_SCRIPT)}; style-src {_source(_STYLE)}; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
