"""What the tests of pages, plots and records share: an attack, a text that must be escaped, a comparison."""

from functools import cache

from fgai.adversaries import NodeInjection
from fgai.auditing import Comparison, compare
from worlds import community, trained

ATTACK = NodeInjection(4, 10, steps=3, step=0.3)
HOSTILE = "</script><script>document.title = 'run'</script><img src=x onerror=alert(1)>\u2028&[[scripts]]"


@cache
def comparison() -> Comparison:
    models = {"vanilla": trained(), "other": trained("hashed")}
    return compare(models, community(), ATTACK, explanation="last", seeds=2, show_nodes=(3,))


def texts(driver, selector):
    return driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText)", selector
    )


def unfold(driver):
    """Open every part, and let it be drawn; again where a slow browser had not finished loading."""
    from selenium.webdriver.support.ui import WebDriverWait

    def opened(driver):
        driver.execute_script("document.querySelectorAll('details').forEach((part) => (part.open = true))")
        drawn(driver)
        parts = "return document.querySelector('details') && !document.querySelector('details:not([open])')"
        return driver.execute_script(parts)

    WebDriverWait(driver, 20).until(opened)


def drawn(driver):
    """Wait for two frames: observers of sizes run, and what they change is laid out."""
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def size(driver, width, height=900):
    """Give the window a size, and let the page be drawn."""
    shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
    drawn(driver)
