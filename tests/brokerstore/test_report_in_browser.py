"""The page of `report` in a real headless Chromium: on a phone and a desk, light and dark."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.brokerstore.tool import run

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="Chromium and its driver are not installed"),
]
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
PHONE, DESK = 390, 1280


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(service=Service(DRIVER), options=options)
    yield driver
    driver.quit()


@pytest.fixture(params=["broker-live", "rabbitmq-clean"])
def page(request: pytest.FixtureRequest, fixture_store: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.getbasetemp() / f"{request.param}.html"
    if out.exists():  # made once and used by all tests
        return out
    fixture = fixture_store(request.param)
    folder = fixture.folder.parent / "vhost" if request.param.startswith("rabbit") else fixture.store
    assert run("report", "-o", out, folder).code == 0
    return out


def show(browser: Any, page: Path, width: int, scheme: str) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(page.as_uri())
    if folder := os.environ.get("BROKERSTORE_SCREENSHOTS"):  # for people to look at
        browser.save_screenshot(os.path.join(folder, f"{page.stem}-{width}-{scheme}.png"))


def requests(browser: Any) -> list[str]:
    """Return the addresses of all requests since the last call; `chrome:` is what the browser has in itself."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith("chrome:")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_page_makes_no_requests_logs_no_errors_and_does_not_overflow(
    browser: Any, page: Path, width: int, scheme: str
) -> None:  # fmt: skip
    """The page requests nothing else, logs no error, and does not scroll sideways."""
    browser.get_log("performance")
    show(browser, page, width, scheme)
    assert [url for url in requests(browser) if not url.startswith(("data:", page.as_uri()))] == []
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast_in_both_color_schemes(browser: Any, page: Path, scheme: str) -> None:
    """Text on the page and in charts has a contrast of at least 4.5."""
    show(browser, page, DESK, scheme)
    colours = browser.execute_script(
        """const css = (element, name) => getComputedStyle(element)[name];
        return {paper: css(document.body, 'backgroundColor'), text: css(document.body, 'color'),
                soft: css(document.querySelector('header p'), 'color'),
                drawn: css(document.querySelector('svg text'), 'fill')};"""
    )
    paper = luminance(colours.pop("paper"))
    for name, colour in colours.items():
        low, high = sorted((paper, luminance(colour)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"{name}: {colour}"


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_problems_are_cards_on_a_phone(browser: Any, fixture_store: Any, tmp_path: Path, width: int) -> None:
    """Below 600 pixels each cell is a line of its own under its label; words are whole; a screen reader finds the table."""
    out = tmp_path / "torn.html"
    assert run("report", "-q", "-o", out, fixture_store("crash-torn").store).code == 1
    show(browser, out, width, "light")
    cells = browser.execute_script(
        """return [...document.querySelectorAll('.cards tbody tr:first-child td')].map(cell => {
        const box = cell.getBoundingClientRect();
        return {top: box.top, label: getComputedStyle(cell, '::before').content, text: cell.textContent};});"""
    )
    assert len({cell["top"] for cell in cells}) == (5 if width == PHONE else 1)
    assert ["Kind" in cell["label"] for cell in cells] == [width == PHONE, False, False, False, False]
    assert [cell["text"] for cell in cells[:3]] == ["bad properties size", "commitlog/00000000000000196608", "40988"]
    roles = [node["role"]["value"] for node in browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]]
    assert roles.count("columnheader") >= 5 and "row" in roles and "cell" in roles
    assert "overflow-wrap: anywhere" not in out.read_text()


def luminance(colour: str) -> float:
    """Return the relative luminance of rgb(r, g, b), as the web's accessibility guidelines define it."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_everything_has_a_name_for_a_screen_reader(browser: Any, page: Path) -> None:
    """Charts have names, tables have headers, heading levels are not skipped, and the page has a language."""
    show(browser, page, DESK, "light")
    tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node.get("ignored")]
    pictures = [name for role, name in named if role in ("image", "img")]
    assert len(pictures) == browser.execute_script("return document.querySelectorAll('svg').length") > 0
    assert all(pictures)
    assert all(name for role, name in named if role in ("heading", "region", "columnheader", "link", "button"))
    levels = browser.execute_script("return [...document.querySelectorAll('h1,h2,h3')].map(one => +one.tagName[1])")
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert browser.execute_script("return document.documentElement.lang") == "en"
