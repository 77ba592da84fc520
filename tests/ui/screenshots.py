"""`make screenshots`: every page of the dashboard as a picture, wide and narrow, light and dark."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from tests.system.process import baton
from tests.ui.conftest import FLAGS, WAIT_MS
from tests.ui.page_list import filled_server, paths
from tools.browser import find_browser, why_missing

DOCS = Path(__file__).resolve().parents[2] / "docs" / "how-to"
# The pictures that pages of the documentation show: name of the page, and height in pixels.
IN_DOCS = {"overview": 1_000, "dead-letters": 800, "message": 900}
SIZES = {"wide": (1280, 900), "narrow": (390, 844)}
THEMES = ("light", "dark")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="screenshots", help="directory for the pictures (default screenshots)")
    parser.add_argument("--seconds", type=float, default=30, help="how long the demo runs before (default 30)")
    parser.add_argument("--docs", action="store_true", help="write the pictures of the documentation instead")
    parser.add_argument("--only", default="", help="only pages whose name contains this text")
    given = parser.parse_args()
    program = find_browser()
    if program is None:
        print(f"No pictures: {why_missing()}.", file=sys.stderr)
        return 1
    out = Path(given.out)
    with (
        tempfile.TemporaryDirectory() as directory,
        filled_server(Path(directory)) as (server, shown),
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=program, args=list(FLAGS))
        listed = paths(shown)
        demo = ["demo", "--url", server.url, "--rate", "40", "--seconds"]
        baton(*demo, str(given.seconds))  # the plots show something
        living = subprocess.Popen(
            [sys.executable, "-m", "batonq", *demo, "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        chosen = {name: path for name, path in listed.items() if given.only in name}
        if given.docs:
            pictures_of_docs(browser, server.url, listed)
        else:
            out.mkdir(parents=True, exist_ok=True)
            for size in SIZES:
                for theme in THEMES:
                    picture(browser, server.url, chosen, size, theme, out)
        browser.close()
        living.terminate()
        living.wait()
    print(f"{len(IN_DOCS)} pictures in {DOCS}" if given.docs else f"{len(chosen) * 4} pictures in {out}")
    return 0


def picture(browser: Browser, url: str, pages: dict[str, str], size: str, theme: str, out: Path) -> None:
    width, height = SIZES[size]
    scheme: object = theme
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    for name, path in pages.items():
        response = page.goto(url + path)
        page.wait_for_load_state("load")
        page.wait_for_timeout(600)  # plots are drawn
        page.screenshot(path=out / f"{name}-{size}-{theme}.png", full_page=True)
        if response is None or response.status != 200:
            print(f"{path}: {response and response.status}", file=sys.stderr)
    context.close()


def pictures_of_docs(browser: Browser, url: str, pages: dict[str, str]) -> None:
    """Small files: few colours, and only the top of long pages."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page = context.new_page()
    for name, height in IN_DOCS.items():
        page.set_viewport_size({"width": 1280, "height": height})
        page.goto(url + pages[name])
        page.wait_for_timeout(600)
        with Image.open(BytesIO(page.screenshot())) as image:
            image.convert("RGB").quantize(256, kmeans=2).save(DOCS / f"dashboard-{name}.png", optimize=True)
    context.close()


if __name__ == "__main__":
    sys.exit(main())
