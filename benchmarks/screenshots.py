"""The pictures of the report and the leaderboard in docs/, taken with headless Chromium from committed results.

python benchmarks/screenshots.py
python benchmarks/screenshots.py --page report.html --out DIR    # of another page
"""

from __future__ import annotations

import base64
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from selenium import webdriver
from selenium.webdriver.chrome.webdriver import WebDriver

from fgai import report
from fgai.auditing import AuditReport, Comparison
from fgai.bench import leaderboard_page

AUDITS = Path("results/audits")
MODELS = {"Plain GAT": "amazon-photo-gat-vanilla-0", "GAT with FGAI": "amazon-photo-gat-fgai-0"}
TYPED = {"HAN": "imdb-han-vanilla-0", "HAN with FGAI": "imdb-han-fgai-0"}
MOLECULES = {"GAT": "mutagenicity-gat-graphs-vanilla-0", "GAT with FGAI": "mutagenicity-gat-graphs-fgai-0"}
MARGIN = 12  # pixels around a part of the page
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-prefers-reduced-motion")


@dataclass(frozen=True)
class Shot:
    """One picture: its file, the size of the window, the theme, and the part of the page."""

    name: str
    width: int
    height: int
    theme: str = "light"
    part: str = ""  # CSS selector; the window if empty


SHOTS = (
    Shot("report-photo", 1280, 900),
    Shot("report-dark", 1280, 900, "dark"),
    Shot("report-narrow", 400, 1400),
    Shot("report-node", 1280, 900, part="#view"),
)
BOARD = (Shot("leaderboard", 1280, 1400), Shot("leaderboard-narrow", 400, 1000, "dark"))
TYPED_SHOTS = (Shot("report-typed", 1280, 940),)
MOLECULE_SHOTS = (Shot("report-molecules", 1280, 900, part="#view"),)


def browser(folder: Path) -> WebDriver:
    """Chromium without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))


def take(driver: WebDriver, page: Path, shot: Shot, out: Path) -> None:
    """Open the page at the size and in the theme of a shot, and write its picture."""
    size = {"width": shot.width, "height": shot.height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wish = {"name": "prefers-color-scheme", "value": shot.theme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wish]})
    driver.get(page.resolve().as_uri())
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")  # it is painted
    clip = {"x": 0, "y": 0, "width": shot.width, "height": shot.height, "scale": 1}
    if shot.part:
        box = driver.execute_script("return document.querySelector(arguments[0]).getBoundingClientRect()", shot.part)
        clip |= {"x": box["x"] - MARGIN, "y": box["y"] - MARGIN}
        clip |= {"width": box["width"] + 2 * MARGIN, "height": box["height"] + 2 * MARGIN}
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    (out / f"{shot.name}.png").write_bytes(base64.b64decode(taken["data"]))


def main(
    page: Annotated[Path | None, typer.Option(help="A saved page; by default, that of the committed audits.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of the pictures.")] = Path("docs"),
) -> None:
    with tempfile.TemporaryDirectory() as name:
        shots = {page: SHOTS} if page else _committed(Path(name))
        driver = browser(Path(name) / "browser")
        try:
            for path, shot in ((path, shot) for path, several in shots.items() for shot in several):
                take(driver, path, shot, out)
        finally:
            driver.quit()


def _committed(folder: Path) -> dict[Path, tuple[Shot, ...]]:
    """The pages of the committed results, and their pictures."""
    audited, typed, molecules, board = (folder / f"{name}.html" for name in ("report", "typed", "molecules", "board"))
    pages = (audited, MODELS, "amazon-photo"), (typed, TYPED, "imdb"), (molecules, MOLECULES, "mutagenicity")
    for page, models, data in pages:
        reports = {model: AuditReport.load(AUDITS / f"{file}.json") for model, file in models.items()}
        report.save(page, Comparison(reports), about={"data": data})
    leaderboard_page.save(board, "results")
    return {audited: SHOTS, typed: TYPED_SHOTS, molecules: MOLECULE_SHOTS, board: BOARD}


if __name__ == "__main__":
    typer.run(main)
