"""The built pages in a real browser without a network: everything is there, moves, and can be read by everyone.

Skipped, with the reason, where there is no Chromium or where npm could not get the pages' scripts; with
ASSOC_REQUIRE_BROWSER=1 that is a failure. The last tests spoil a page to see that each check fails when it must.
"""

import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

import assets
import book
import browser
from test_book import toc_pages

PAGES = [*toc_pages(), "search", "genindex"]
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
VIEW = "application/vnd.jupyter.widget-view+json"

# Show all there is: open what is folded, load what is far away, and change colours at once.
UNFOLD = """
for (const details of document.querySelectorAll("details")) details.open = true;
for (const image of document.images) image.loading = "eager";
const style = document.createElement("style");
style.textContent = "* { transition: none !important; animation: none !important; }";
document.head.append(style);
"""
FORMULAS = """
const done = arguments[arguments.length - 1];
const count = () => done([
  [...document.querySelectorAll(".math")].map(part => part.querySelectorAll("mjx-container").length),
  [...document.querySelectorAll("mjx-merror")].map(part => part.getAttribute("title") || part.textContent)]);
const ready = window.MathJax?.startup?.promise;
ready ? ready.then(() => document.fonts.ready).then(count, count) : count();
"""
PICTURES = """
const done = arguments[arguments.length - 1];
const other = arguments[0] == "light" ? ".only-dark" : ".only-light";
const images = [...document.querySelectorAll(".bd-article img")].filter(image => !image.closest(other));
Promise.all(images.map(image => image.decode().catch(() => null))).then(() => done(images.map(image => ({
  source: image.getAttribute("src").slice(0, 80), alt: image.alt.trim(),
  shown: image.naturalWidth > 0 && image.getClientRects().length > 0}))));
"""
WIDTH = "return [document.documentElement.scrollWidth, window.innerWidth];"


@dataclass
class Visit:
    """What a visit to a page found."""

    figures: int = 0
    formulas: int = 0
    explorers: int = 0
    moved: int = 0  # controls of explorers
    requests: list[str] = field(default_factory=list)  # that left the machine
    errors: list[str] = field(default_factory=list)  # of the console
    barriers: list[str] = field(default_factory=list)  # serious or critical findings of axe
    other: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        return [
            *(f"a request left the machine: {url}" for url in self.requests),
            *(f"the console says: {error}" for error in self.errors),
            *(f"axe says: {barrier}" for barrier in self.barriers),
            *self.other,
        ]


def visit(driver: WebDriver, address: str, page: str, axe: Path | None = None) -> Visit:
    """Open a page, use all of it, and note what is wrong.

    Args:
        axe: script of axe-core. Default: do not look for barriers.
    """
    found = Visit()
    for log in ("browser", "performance"):
        driver.get_log(log)  # what the page before has left
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    try:
        browser.open_page(driver, f"{address}/{page}")
    except TimeoutException as error:
        found.other.append(f"the page is not ready: {error.msg}")
    driver.execute_script(UNFOLD)
    found.formulas, problems = formula_problems(driver)
    found.other += problems
    found.other += move_everything(driver, found)
    for theme in ("light", "dark"):
        browser.set_theme(driver, theme)
        pictures = driver.execute_async_script(PICTURES, theme)
        found.figures = max(found.figures, len(pictures))
        for picture in pictures:
            found.other += [f"the figure {picture['source']} is not shown"] * (not picture["shown"])
            found.other += [f"the figure {picture['source']} has no alt text"] * (not picture["alt"])
        if axe:  # themes differ in colours alone
            rules = ["color-contrast"] if theme == "dark" else None
            found.barriers += browser.accessibility_problems(driver, axe, "body", rules)
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    content, window = driver.execute_script(WIDTH)
    if content > window or window != PHONE["width"]:
        found.other.append(f"the page is {max(content, window)} px wide on a screen of {PHONE['width']} px")
    found.requests = browser.outside_requests(driver, address)
    found.errors = browser.console_errors(driver)
    return found


def formula_problems(driver: WebDriver) -> tuple[int, list[str]]:
    """How many formulas the page has typeset, and what is wrong with the others."""
    typeset, mistakes = driver.execute_async_script(FORMULAS)
    raw = sum(count == 0 for count in typeset)
    problems = [f"{raw} of {len(typeset)} formulas are not typeset"] if raw else []
    return len(typeset) - raw, problems + [f"a formula has a mistake: {mistake}" for mistake in mistakes]


def move_everything(driver: WebDriver, found: Visit) -> Iterator[str]:
    """Move every control of every explorer and say which changes nothing; counts them in `found`."""
    expected = len(driver.find_elements("css selector", f"script[type='{VIEW}']"))
    shown = browser.explorers(driver)
    found.explorers = len(shown)
    if len(shown) != expected:
        yield f"{expected} widgets were expected, {len(shown)} are there"
    for number, explorer in enumerate(shown, start=1):
        controls = browser.controls(explorer)
        active = explorer.find_elements("css selector", "input, select, button, [role=slider]")
        if len(controls) != sum(part.is_displayed() for part in active) or not controls:
            yield f"widget {number} has controls that the tests do not know to move"
        for name, control in controls.items():
            if changes(explorer, control):
                found.moved += 1
            else:
                yield f"{name!r} of widget {number} changes nothing"


def changes(explorer: WebElement, control: WebElement) -> bool:
    """Whether any move of a control, by keyboard, changes the picture of its explorer."""
    before = browser.picture(explorer)
    active = control.find_element("css selector", "select, .noUi-handle")
    for key in (Keys.END, Keys.HOME, Keys.ARROW_DOWN, Keys.ARROW_DOWN):
        active.send_keys(key)
        if browser.picture(explorer) not in ("", before):
            return True
    return False


class Summary:
    """A pytest plugin that closes the run with what the browser has seen."""

    def __init__(self) -> None:
        self.visits: dict[str, Visit] = {}
        self.started = time.perf_counter()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        def total(name: str) -> int:
            values = [getattr(visit, name) for visit in self.visits.values()]
            return sum(value if isinstance(value, int) else len(value) for value in values)

        terminalreporter.section("pages in the browser")
        terminalreporter.write_line(
            f"{len(self.visits)} pages: {total('explorers')} widgets with {total('moved')} controls moved, "
            f"{total('figures')} figures, {total('formulas')} formulas"
        )
        terminalreporter.write_line(
            f"requests that left the machine: {total('requests')}, console errors: {total('errors')}, "
            f"serious findings of axe: {total('barriers')}, other problems: {total('other')}"
        )


@pytest.fixture(scope="module")
def summary(request: pytest.FixtureRequest) -> Summary:
    plugin = Summary()
    request.config.pluginmanager.register(plugin)
    return plugin


def give_up(reason: str) -> NoReturn:
    """Skip, or fail where a browser is required."""
    (pytest.fail if os.environ.get("ASSOC_REQUIRE_BROWSER") == "1" else pytest.skip)(reason)


@pytest.fixture(scope="module")
def axe(site: Path) -> Path:
    """The script of axe-core; the scripts of the pages are there too."""
    if reason := assets.fetch([*assets.PAGES, assets.AXE]):
        give_up(f"the pages take their scripts from the network: {reason}")
    return assets.unpacked(assets.AXE) / "axe.min.js"


@pytest.fixture(scope="module")
def driver(axe: Path) -> Iterator[WebDriver]:
    if browser.find_browser() is None:
        give_up("there is no Chromium with chromedriver (Debian and Ubuntu: packages chromium, chromium-driver)")
    with browser.start_browser() as started:
        yield started


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with browser.serve(site) as served:
        yield served


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, driver: WebDriver, address: str, axe: Path, summary: Summary) -> None:
    found = summary.visits[page] = visit(driver, address, f"{page}.html", axe)
    assert found.problems == []


def test_a_page_works_from_the_disk(driver: WebDriver, site: Path) -> None:
    found = visit(driver, site.as_uri(), page_with_widgets(site))
    assert found.problems == []
    assert found.moved
    assert found.formulas


@pytest.mark.parametrize("page", PAGES)
def test_widget_data_of_a_page_stay_small(page: str, site: Path) -> None:
    assert book.widget_data(site / f"{page}.html") <= 1_500_000


# --- the checks on pages that are spoilt


def page_with_widgets(site: Path) -> str:
    """The smallest page that has widgets."""
    pages = [page for page in (site / "book").glob("*.html") if book.widget_data(page)]
    assert pages, "no page has widgets"
    return min(pages, key=lambda page: page.stat().st_size).relative_to(site).as_posix()


@pytest.fixture(scope="module")
def copy(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(site, tmp_path_factory.mktemp("spoilt") / "site")


def replaced(text: str, old: str, new: str) -> str:
    assert re.search(old, text), old
    return re.sub(old, lambda _: new, text)


CARELESS = """
<img src="lost.png" alt="Words"> <img src="../_static/icon.svg" alt="" width="9">
<img src="https://example.org/a.png" alt="Words"> <div style="width: 999px">words</div>
<p class="math">\\(\\nosuchmacro\\)</p> <script>undefined.x</script>
</article>
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (r'"target": \["IPY_MODEL_\w+", "selected_index"\]', '"target": null', ["changes nothing"]),
        (r'(?<="model_id": )"\w+"', '"lost"', ["widgets were expected"]),
        ("dist/embed.js", "dist/lost.js", ["the console says", "widgets were expected"]),
        ("es5/tex-chtml-full.js", "es5/lost.js", ["the console says", "formulas are not typeset"]),
        (
            "</article>",
            CARELESS,
            [
                "lost.png is not shown",
                "icon.svg has no alt text",
                "left the machine: https://example.org/a.png",
                "px wide on a screen of 390 px",
                r"Undefined control sequence \nosuchmacro",
                "the console says",
            ],
        ),
    ],
    ids=["link", "state", "widget script", "MathJax", "careless page"],
)
def test_what_is_spoilt_is_found(
    old: str, new: str, words: list[str], driver: WebDriver, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser, "PATIENCE", 3)
    text = (copy / page_with_widgets(copy)).read_text(encoding="utf-8")
    (copy / "book/spoilt.html").write_text(replaced(text, old, new), encoding="utf-8")
    with browser.serve(copy) as address:
        problems = visit(driver, address, "book/spoilt.html").problems
    (copy / "book/spoilt.html").unlink()
    assert [word for word in words if not any(word in problem for problem in problems)] == [], problems


@pytest.mark.parametrize(
    ("html", "words"), [("<button></button>", "button-name"), ("<p style='color: #aaa'>words</p>", "color-contrast")]
)
def test_barriers_are_found(html: str, words: str, driver: WebDriver, copy: Path, axe: Path) -> None:
    page = copy / "book/spoilt.html"
    sound = (copy / "book/glossary.html").read_text(encoding="utf-8")
    page.write_text(replaced(sound, "</article>", f"{html}</article>"), encoding="utf-8")
    with browser.serve(copy) as address:
        found = visit(driver, address, "book/spoilt.html", axe)
    page.unlink()
    assert any(barrier.startswith(words) for barrier in found.barriers), found
