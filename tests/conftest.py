"""What every test shares: one thread, no chance from run to run, and the datasets, each read once."""

import json
import os
import shutil
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import settings

from fgai import datasets
from fgai.datasets.split import split_nodes
from loose import loose

torch.set_num_threads(1)
settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("ci")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-prefers-reduced-motion",
)


class Facts(NamedTuple):
    """What the tests ask of a dataset; the graph itself is let go, since Physics alone holds 1.2 GB."""

    nodes: int
    edges: int
    features: int
    classes: int
    masks: torch.Tensor  # [3, N]: train, val, test


def pytest_collectstart(collector):
    """Give models that a test file builds as it is imported the same weights in every run."""
    if isinstance(collector, pytest.Module):
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _seed():
    """Give each test the same random numbers, whichever tests ran before it in its process."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shelf():
    """The folder of raw files."""
    if "FGAI_RAW" not in os.environ:
        pytest.skip("FGAI_RAW is not set; it names the folder that holds the raw files and SOURCES.md")
    return Path(os.environ["FGAI_RAW"])


@pytest.fixture(scope="session")
def data_root(tmp_path_factory):
    """Where datasets are cached: `$FGAI_DATA` keeps them between runs."""
    return Path(os.environ.get("FGAI_DATA") or tmp_path_factory.mktemp("fgai-data"))


@pytest.fixture(scope="session")
def facts(shelf, data_root):
    """`facts(name)`: a dataset's size and its split by seed 0."""

    @cache
    def read(name):
        data = loose(datasets.load(name, seed=0, root=data_root))
        masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
        return Facts(data.num_nodes, data.num_edges, data.num_features, int(data.y.unique().numel()), masks)

    return read


@pytest.fixture(scope="session")
def community():
    """A small graph that is easy to learn, with its split."""
    return split_nodes(datasets.synthetic(200, 1_200, features=16, classes=4, signal=1.0, seed=3), seed=3)


@pytest.fixture(scope="module", name="driver")
def _driver(tmp_path_factory):
    """Chromium without a window; its console and its requests are watched."""
    from selenium import webdriver

    programs = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if None in programs and not os.environ.get("CI"):
        pytest.skip("no browser here; install Debian's chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0] or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}", "--window-size=1200,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(programs[1]))
    yield driver
    driver.quit()


@pytest.fixture(name="look")
def _look(driver):
    """Opens a page and, at the end, sees that nothing was asked for and nothing went wrong."""
    from selenium.webdriver.support.ui import WebDriverWait

    opened = []

    def look(path):
        driver.get("about:blank")
        driver.get_log("browser"), driver.get_log("performance")
        driver.get(path.as_uri())
        loaded = "return document.readyState === 'complete' && location.href !== 'about:blank'"
        WebDriverWait(driver, 20).until(lambda driver: driver.execute_script(loaded))
        opened.append(path.as_uri())
        return driver

    yield look
    assert driver.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert asked == opened
    assert "run" not in driver.title.split()  # no name was executed
