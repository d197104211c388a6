"""The API page in a real browser."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.server.conftest import Running

CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.may_skip,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]


def _try(page: Page, operation: str) -> None:
    block = page.locator(f'[id="{operation}"]')
    block.locator(".opblock-summary-control").click()
    block.get_by_role("button", name="Try it out").click()
    block.get_by_role("button", name="Execute").click()


def test_the_page_shows_every_operation_and_sends_requests(server: Running, tmp_path: Path) -> None:
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 1600})
        page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda asked: (
                None if asked.url.startswith((server.url, "data:", "blob:")) else complaints.append(asked.url)
            ),
        )
        page.goto(f"{server.url}/docs")
        page.locator(".opblock-tag").first.wait_for(timeout=60_000)
        assert page.locator(".opblock-tag").count() > 15
        page.get_by_role("button", name="Authorize").first.click()
        page.locator("#auth-bearer-value").fill(server.key("browser"))
        page.get_by_role("button", name="Apply credentials").first.click()
        page.get_by_role("button", name="Remove authorization").wait_for(timeout=60_000)
        page.get_by_role("button", name="Close").first.click()
        page.locator('[id="operations-tag-sandboxes"] .expand-operation').click()
        _try(page, "operations-sandboxes-sandboxes_list_sandboxes")
        answer = page.locator(".live-responses-table tbody .response-col_status").first
        answer.wait_for(timeout=60_000)
        page.screenshot(path=tmp_path / "page.png")
        assert answer.inner_text().startswith("200"), answer.inner_text()
        browser.close()
    assert complaints == []


def test_a_one_time_link_ends_at_a_page_that_is_there(server: Running) -> None:
    with server.client_of("admin") as admin:
        server.user("browser")
        link = admin.post("/v1/users/browser/link", json={}).json()["url"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(link)
        page.locator(".opblock-tag").first.wait_for(timeout=60_000)
        assert page.url == f"{server.url}/docs"
        assert page.evaluate("fetch('/v1/session').then(answer => answer.json())")["user"] == "browser"
        browser.close()
