"""Photographs four pages of the docs, and a terminal with README's example: `python benchmarks/docs_screenshots.py`.

Needs Debian's `chromium` and `chromium-driver`. Fails if a page scrolls sideways at a width of 1,280 pixels.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

from selenium import webdriver

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from readme import examples  # noqa: E402

WIDTH, HEIGHT = 1280, 800
PAGES = {  # picture -> page, theme
    "page-quickstart.png": ("quickstart", "light"),
    "page-tutorial.png": ("notebooks/own_model", "light"),
    "page-speed.png": ("speed#measured", "dark"),
    "page-reference.png": ("api/auditing", "light"),
}
TERMINAL = """<body style="margin:0;background:#0f172a;color:#e2e8f0;padding:18px 22px;box-sizing:border-box">
<pre style="font:14px/1.5 'DejaVu Sans Mono',monospace;margin:0;white-space:pre-wrap">{}</pre></body>"""


def browser() -> webdriver.Chrome:
    """A browser without a window."""
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def photograph(chrome: webdriver.Chrome, page: str, theme: str, out: Path, height: int = HEIGHT) -> None:
    """Save a picture of what a window shows of a page."""
    size = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    chrome.get(page)
    chrome.execute_script("try { localStorage.clear() } catch { }")  # else the theme of the page before
    chrome.refresh()
    time.sleep(1)  # the header moves
    out.write_bytes(chrome.get_screenshot_as_png())


def sideways(chrome: webdriver.Chrome) -> list[str]:
    """The parts of the open page that are wider than their place."""
    return chrome.execute_script(
        "const wide = [...document.querySelectorAll('.md-content *')].filter(e => e.scrollWidth > e.clientWidth + 1 "
        "&& e.clientWidth > 0 && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)).map(e => "
        "e.tagName + '.' + e.className + ': ' + e.textContent.trim().slice(0, 60));"
        "return document.documentElement.scrollWidth > innerWidth ? ['the page', ...wide] : wide"
    )


def main() -> int:
    """Build the docs, photograph them, and look for parts that scroll sideways."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        site, terminal = Path(folder) / "site", Path(folder) / "terminal.html"
        build = [sys.executable, "-m", "mkdocs", "build", "-q", "--no-directory-urls", "--site-dir", str(site)]
        subprocess.run(build, cwd=ROOT, check=True)
        example = examples((ROOT / "README.md").read_text())[0]
        terminal.write_text(TERMINAL.format("$ python example.py\n" + escape(example.shown or "")), encoding="utf-8")
        chrome = browser()
        try:
            photograph(chrome, terminal.as_uri(), "dark", ROOT / "docs/terminal.png", height=246)
            for picture, (page, theme) in PAGES.items():
                name, _, place = page.partition("#")
                address = (site / f"{name}.html").as_uri() + f"#{place}"
                photograph(chrome, address, theme, ROOT / "docs" / picture)
            for page in sorted(site.rglob("*.html")):
                chrome.get(page.as_uri())
                wrong += [f"{page.relative_to(site)}: {part}" for part in sideways(chrome)]
        finally:
            chrome.quit()
    print("\n".join(wrong) or "no page scrolls sideways")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
