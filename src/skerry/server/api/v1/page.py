"""The interactive API page and the OpenAPI document. The page loads everything from this package."""

from __future__ import annotations

from importlib import resources
from typing import Annotated, Any

from fastapi import Path, Request, Response
from starlette.responses import FileResponse, HTMLResponse

from skerry.core import NotFound
from skerry.server.web.describe import op
from skerry.server.web.document import served
from skerry.server.web.guard import Routes
from skerry.server.web.models.types import Answer

router = Routes("page")

PACKAGE = resources.files("skerry.server")
ASSETS = {
    "start.js": ("page/start.js", "text/javascript"),
    "page.css": ("page/page.css", "text/css"),
    "swagger-ui-bundle.js": ("static/docs/swagger-ui-bundle.js", "text/javascript"),
    "swagger-ui.css": ("static/docs/swagger-ui.css", "text/css"),
    "favicon-32x32.png": ("static/docs/favicon-32x32.png", "image/png"),
}
NOT_BUILT = "`make setup` in a source tree fetches it; pip does too if it reaches a package index while it builds"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@router.get("/docs/", include_in_schema=False)
@router.get("/docs", **op("Open the interactive API page", raw="text/html", raises=("NOT_FOUND",)))
async def docs() -> Response:
    """A page with a form for every operation. It needs nothing from elsewhere."""
    if not (PACKAGE / ASSETS["swagger-ui-bundle.js"][0]).is_file():
        raise NotFound(
            "this installation was built without the API page; /openapi.json has the same content", hint=NOT_BUILT
        )
    html = (PACKAGE / "page" / "index.html").read_text()
    return HTMLResponse(html, headers={"content-security-policy": POLICY})


@router.get("/docs/{asset}", **op("Get a file of the API page", raw="application/octet-stream"))
async def asset(
    asset: Annotated[str, Path(max_length=100, description="The name of the file.", examples=["start.js"])],
) -> Response:
    found = ASSETS.get(asset)
    file = None if found is None else PACKAGE / found[0]
    if found is None or file is None or not file.is_file():
        raise NotFound(f"there is no {asset[:100]!r} here", hint=NOT_BUILT if found else None)
    return FileResponse(str(file), media_type=found[1], headers={"cache-control": "public, max-age=3600"})


class Document(Answer, extra="allow"):
    """A document of the OpenAPI specification 3.1."""

    openapi: str
    """The version of the specification."""
    paths: dict[str, Any]
    """The operations, by path and method."""


@router.get("/openapi.json", **op("Get the OpenAPI document", Document))
async def openapi(request: Request) -> Response:
    """It describes everything that users call."""
    return served(request)
