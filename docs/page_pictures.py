"""Takes the pictures of the page for README.md and docs/page.md: `python docs/page_pictures.py`, two minutes on two cores.

Needs Chromium, playwright, and fonts that the page asks for (`apt install chromium fonts-noto-core fonts-crosextra-caladea`).
The run is the recipe `digits` without a head, seed 0, and its predictions after temperature scaling.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from calattn.cli.app import run

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.browser import chromium

IMAGES = Path(__file__).parent / "images"
# name → page, viewport, colours, and where its controls stand
PICTURES = {
    "page-desktop": ("one", (1200, 1180), "light", ""),
    "page-phone": ("one", (390, 1270), "dark", "#T=1.6"),
    "page-compared": ("two", (1200, 1000), "light", ""),
}


def main() -> None:
    """Trains, writes the two pages, and takes one picture after the other."""
    from playwright.sync_api import sync_playwright

    fonts = subprocess.run(["fc-list", ":", "family"], capture_output=True, text=True, check=True).stdout
    if missing := [name for name in ("Noto Sans", "Caladea") if name not in fonts]:
        sys.exit(f"the pictures are taken with {' and '.join(missing)}, which this system has not")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "digits"
        for line in (
            ["train", "digits", "--set", "model.head=none", "--out", str(folder), "--accelerator", "cpu"],
            ["evaluate", str(folder), "--html", f"{place}/one.html"],
            ["calibrate", str(folder), "--method", "temperature,vector,isotonic", "--html", f"{place}/two.html"],
        ):
            if (code := run(line)) != 0:
                sys.exit(code)
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=chromium.executable(), args=["--no-sandbox"])
            for name, (page_name, (width, height), scheme, address) in PICTURES.items():
                size = {"width": width, "height": height}
                page = browser.new_context(viewport=size, color_scheme=scheme, device_scale_factor=1.5).new_page()
                page.goto(f"{Path(place, page_name).with_suffix('.html').as_uri()}{address}")
                page.wait_for_timeout(500)
                page.screenshot(path=IMAGES / f"{name}.png")
            browser.close()


if __name__ == "__main__":
    main()
