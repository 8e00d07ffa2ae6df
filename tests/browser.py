"""A real browser for the tests of built pages: serve a folder, open a page, move its explorers, see what went wrong.

    with serve(site) as address, start_browser() as driver:
        open_page(driver, f"{address}/book/1a-basis.html")
        for explorer in explorers(driver):
            before = picture(explorer)
            move_slider(explorer, "s η", 3)
            assert picture(explorer) != before
        assert console_errors(driver) == []
        assert outside_requests(driver, address) == []

Chromium and its driver are looked for on the PATH (`find_browser`); nothing is downloaded.
"""

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

PATIENCE = 30  # seconds that a page may take to do what it was asked for, on a busy machine
SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    # The browser's own errands are no requests of the page.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--no-first-run",
    "--hide-scrollbars",
    # No name outside this machine can be found, as without a network.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def find_browser() -> tuple[str, str] | None:
    """Paths of a Chromium or Chrome and of a driver of its version, or None if either is missing."""
    driver = shutil.which("chromedriver")
    browsers = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    return next(((each, driver) for each in browsers if driver and major(each) == major(driver)), None)


def major(program: str) -> str:
    """The first part of a program's version."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"(\d+)\.", said)
    return found[1] if found else ""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder on a free port of this machine; gives the address without a slash at its end."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def start_browser(width: int = 1200, height: int = 1000) -> Iterator[WebDriver]:
    """A headless browser that records its console and every request."""
    found = find_browser()
    if found is None:
        raise RuntimeError("no Chromium with chromedriver on the PATH: install both")
    browser, driver_path = found
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for switch in (*SWITCHES, f"--window-size={width},{height}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_path))
    driver.set_page_load_timeout(PATIENCE)
    try:
        yield driver
    finally:
        driver.quit()


def open_page(driver: WebDriver, address: str, theme: str = "light") -> None:
    """Open a page in the "light" or "dark" theme, and wait until all its explorers can be used."""
    scheme = [{"name": "prefers-color-scheme", "value": theme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    driver.get(address)
    set_theme(driver, theme)
    expected = len(driver.find_elements(By.CSS_SELECTOR, "script[type='application/vnd.jupyter.widget-view+json']"))
    WebDriverWait(driver, PATIENCE).until(
        lambda _: len(explorers(driver)) >= expected and all(picture(explorer) for explorer in explorers(driver)),
        f"{expected} explorers were expected on {address}",
    )


def set_theme(driver: WebDriver, theme: str) -> None:
    """Switch the open page to the "light" or "dark" theme, as its theme button does."""
    driver.execute_script(
        "document.documentElement.dataset.mode = document.documentElement.dataset.theme = arguments[0]", theme
    )


def explorers(driver: WebDriver) -> list[WebElement]:
    """All explorers of the page, in its order."""
    return driver.find_elements(By.CSS_SELECTOR, ".assoc-explorer.jupyter-widgets")


def picture(explorer: WebElement) -> str:
    """The HTML of the picture that an explorer shows now; "" before there is one.

    Raises an AssertionError if it shows more than one.
    """
    shown = explorer.find_elements(By.CSS_SELECTOR, ".assoc-frames .widget-html-content")
    assert len(shown) <= 1, f"an explorer shows {len(shown)} pictures at once"
    return shown[0].get_attribute("innerHTML") if shown else ""


def control(explorer: WebElement, name: str) -> WebElement:
    """The control with this name beside it."""
    for label in explorer.find_elements(By.CSS_SELECTOR, ".widget-label"):
        if label.text.strip() == name:
            return label.find_element(By.XPATH, "..")
    raise AssertionError(f"the explorer has no control {name!r}")


def controls(explorer: WebElement) -> dict[str, WebElement]:
    """All visible controls of an explorer by name: sliders and lists, in their order."""
    parts = explorer.find_elements(By.CSS_SELECTOR, ".widget-hslider, .widget-dropdown")
    return {part.find_element(By.CSS_SELECTOR, ".widget-label").text.strip(): part for part in parts}


def move_slider(explorer: WebElement, name: str, places: int) -> str:
    """Move a slider by so many places, up or down, with the arrow keys; gives the value it then shows."""
    part = control(explorer, name)
    handle = part.find_element(By.CSS_SELECTOR, ".noUi-handle")
    for _ in range(abs(places)):
        handle.send_keys(Keys.ARROW_RIGHT if places > 0 else Keys.ARROW_LEFT)
    return part.find_element(By.CSS_SELECTOR, ".widget-readout").text


def drag_slider(explorer: WebElement, name: str, share: float) -> str:
    """Drag a slider with the mouse to a share of its track, 0 to 1; gives the value it then shows."""
    part = control(explorer, name)
    handle, track = (part.find_element(By.CSS_SELECTOR, selector) for selector in (".noUi-handle", ".slider"))
    start, end = handle.rect["x"] + handle.rect["width"] / 2, track.rect["x"] + share * track.rect["width"]
    actions = webdriver.ActionChains(explorer.parent)
    actions.click_and_hold(handle).move_by_offset(round(end - start), 0).release().perform()
    return part.find_element(By.CSS_SELECTOR, ".widget-readout").text


def choose(explorer: WebElement, name: str, option: str) -> None:
    """Choose an option of a drop-down list by its text."""
    Select(control(explorer, name).find_element(By.TAG_NAME, "select")).select_by_visible_text(option)


def options(explorer: WebElement, name: str) -> list[str]:
    """The options of a drop-down list."""
    return [option.text for option in Select(control(explorer, name).find_element(By.TAG_NAME, "select")).options]


def console_errors(driver: WebDriver) -> list[str]:
    """Errors of the console since the last call."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


def outside_requests(driver: WebDriver, address: str) -> list[str]:
    """Addresses that were asked for since the last call, other than those of the server itself and data: or blob:."""
    asked = []
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])
    own = urlsplit(address).netloc
    return [
        url for url in asked if urlsplit(url).scheme in ("http", "https", "ws", "wss") and urlsplit(url).netloc != own
    ]


def accessibility_problems(
    driver: WebDriver, axe: Path, within: str = ".assoc-explorer", rules: list[str] | None = None
) -> list[str]:
    """Serious and critical findings of axe-core in a part of the page, one line each.

    Args:
        axe: its axe.min.js. within: a selector. rules: names of its rules. Default: all.
    """
    if not driver.execute_script("return 'axe' in window"):
        driver.execute_script(axe.read_text(encoding="utf-8"))
    found = driver.execute_async_script(
        "const [within, rules, done] = arguments;"
        "axe.run({include: [[within]]}, rules ? {runOnly: rules} : {})"
        ".then(done, error => done({violations: [], error: String(error)}))",
        within,
        rules,
    )
    assert "error" not in found, found
    return [
        f"{violation['id']} ({violation['impact']}): {node['html'][:200]}"
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
