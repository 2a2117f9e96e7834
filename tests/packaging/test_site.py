"""The site of the pages, as `make docs` builds it: opened as a file, in a browser, and on a phone."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.pages import ROOT

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("material", "mkdocstrings")), reason="run `make docs` first"
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a broken link or reference is an error."""
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"BROKERSTORE_PURE": "1", "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not (BROWSER and DRIVER):
        pytest.skip("Chromium and its driver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(service=webdriver.ChromeService(DRIVER), options=options)
    yield driver
    driver.quit()


def test_search_of_a_page_opened_as_a_file_finds_pages(site: Path, browser: Any) -> None:
    """The index and the worker are scripts of the site, so nothing is loaded from the network."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get((site / "howto" / "embed.html").as_uri())
    browser.find_element(By.CSS_SELECTOR, "label[for=__search]").click()
    field = browser.find_element(By.CSS_SELECTOR, ".md-search__input")
    WebDriverWait(browser, 20).until(lambda _: field.is_displayed())
    field.send_keys("file_reserved_time_hours")
    results = ".md-search-result__item a"
    WebDriverWait(browser, 20).until(lambda _: browser.find_elements(By.CSS_SELECTOR, results))
    found = [link.get_attribute("href") for link in browser.find_elements(By.CSS_SELECTOR, results)]
    assert any("/reference/config.html" in link for link in found)
    assert [entry["message"] for entry in browser.get_log("browser")] == []


@pytest.mark.parametrize("page", ["reference/config", "reference/tool", "reference/messages", "howto/retention"])
def test_tables_scroll_by_themselves_on_a_phone(site: Path, browser: Any, page: str) -> None:
    """At 390 px the page is not wider than the screen, and the last column of a table has space for words."""
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get((site / f"{page}.html").as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    cells = "[...document.querySelectorAll('article table:not([class]) td:last-child')]"
    widths = browser.execute_script(f"return {cells}.map(cell => cell.getBoundingClientRect().width)")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert min(widths) >= 190


def test_signatures_have_types(site: Path) -> None:
    """Each parameter of a put has its type, in the library's page and in the engine's."""
    for page in ("library", "messagestore"):
        shown = re.sub(r"<[^>]+>", "", (site / "reference" / f"{page}.html").read_text())
        assert "body: bytes | None = None" in shown
        assert "-&gt; PutResult" in shown


def test_the_reference_of_the_library_has_no_internals(site: Path) -> None:
    """Constructors of what methods return, and methods for threads of the library, are not for programs."""
    for page in ("library", "messagestore", "rabbitstore"):
        shown = (site / "reference" / f"{page}.html").read_text()
        assert "Create it" not in shown
        assert not re.search(r'id="[\w.]+\.(take_news|deliver|take_put|rejoin|engine|parts|drain_events)"', shown)
