"""Reports with hostile content, opened in Chromium: no script of theirs runs, nothing is asked for, none throws."""

import json
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from campaign import ROOM, Finding, lasting
from mutations import mutated_json
from readers import shelf
from selenium import webdriver

from fgai import report
from fgai.auditing import AuditReport
from fgai.errors import FGAIError

LARGEST = 5_000_000  # bytes of a page
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
)
NAMES = (
    "</script><script>document.title='run'</script>",
    "<img src=x onerror=\"document.title='run'\">",
    "' onmouseover='document.title=1",
    "<svg onload=alert(1)>",
    "\u2028\u2029‮",
    "x" * 200_000,
    "javascript:alert(1)",
    "http://example.com/x.png",
    "[[scripts]]",
    "]]>",
    "\ud800",
)


def driver():
    """Chromium without a window, its console and its requests watched; None where there is none."""
    programs = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if None in programs:
        return None
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0] or ""
    for flag in (*FLAGS, f"--user-data-dir={lasting('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options, webdriver.ChromeService(programs[1]))
    made.set_page_load_timeout(30)
    return made


def hostile_report(rng, folder):
    """A page of an audit whose words are hostile, or that was read from a mutated file; None if that was refused."""
    whole = (shelf() / rng.choice(("audit.json", "graphs.json"))).read_bytes()
    raw = json.loads(whole)
    if rng.random() < 0.4:
        (folder / "audit.json").write_bytes(mutated_json(rng, whole))
    else:
        for place in rng.sample(("model", "gain", "names", "notes", "adversary", "versions", "graph_views"), 2):
            word = rng.choice(NAMES)
            raw[place] = {
                "names": {str(node): word for node in range(16)},
                "graph_views": [
                    {**view, "atoms": [[atom[0], word[:40], *atom[2:]] for atom in view["atoms"]]}
                    for view in raw["graph_views"]
                ],
                "notes": [word],
                "adversary": {**raw["adversary"], "name": word, word[:40]: word},
                "versions": {word[:40]: word},
            }.get(place, word)
        (folder / "audit.json").write_text(json.dumps(raw))
    try:
        found = AuditReport.load(folder / "audit.json")
        report.save(folder / "page.html", found, about={"data": rng.choice(NAMES)})
    except FGAIError:
        return None
    return folder / "page.html"


def opened(browser, path):
    """What is wrong with a page when it is opened, or ""."""
    if (size := path.stat().st_size) > LARGEST:
        return f"a page of {size / 1e6:.0f} MB"
    browser.get("about:blank")
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(path.as_uri())
    if "run" in browser.title.split() or browser.title == "1":
        return "a script in the content ran"
    if said := browser.get_log("browser"):
        return f"the console says: {said[0]['message'][:160]}"
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return "" if asked == [path.as_uri()] else f"it asked for {[url for url in asked if url != path.as_uri()][:2]}"


def look(count, browser=None):
    """Open so many pages: counts and findings."""
    browser, counts, findings = browser or driver(), Counter(), []
    try:
        for seed in range(count):
            with tempfile.TemporaryDirectory(dir=ROOM) as name:
                outcome, said = _looked(browser, random.Random(f"pages/{seed}"), Path(name))
            counts[outcome] += 1
            if said:
                findings.append(Finding("report pages in Chromium", seed, outcome, said))
    finally:
        browser.quit()
    return counts, findings


def _looked(browser, rng, folder):
    try:
        path = hostile_report(rng, folder)
    except Exception as error:
        return "raw", f"{type(error).__name__}: {str(error)[:160]}"
    if path is None:
        return "refused", ""
    wrong = opened(browser, path)
    return ("silent", wrong) if wrong else ("worked", "")
