"""The pages of `web` in a real headless Chromium: forms, phones, both color schemes, and what a screen reader gets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.amounts import amount
from tests.brokerstore.test_report_in_browser import DESK, PHONE, browser, pytestmark, requests
from tests.brokerstore.test_web import FOLDERS, unpacked

__all__ = ["browser", "pytestmark", "unpacked"]
PAGES = ("/0/", "/0/queues", "/0/groups", "/0/messages", "/0/message?at=0", "/0/findings", "/0/change/reset")


@contextmanager
def served(*words: object) -> Iterator[str]:
    """Serve folders, and yield the printed address."""
    command = [sys.executable, "-m", "brokerstore", "web", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a store of two hundred messages, and yield the printed address."""
    from messagestore import MessageStore
    from tests.stores import small_config

    store = tmp_path_factory.mktemp("web") / "store"
    with MessageStore.open(store, config=small_config()) as made:
        for number in range(200):
            made.put("orders", b'{"order":%d}' % number)
        made.reset_offsets("orders", "billing", 0)
    with served(store, "--allow-changes") as found:
        yield found


def show(browser: Any, address: str, page: str, width: int) -> None:
    """Open a page; the printed address first, which sets the cookie."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(address)
    browser.get(address.partition("/?")[0] + page)


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_makes_no_other_request_and_has_names_for_a_screen_reader(
    browser: Any, address: str, page: str, width: int
) -> None:  # fmt: skip
    """Nothing scrolls sideways, the browser logs no error, headings and tables have names, and Tab reaches a link."""
    check_page(browser, address, page, width)


@pytest.mark.parametrize("name", FOLDERS[:: amount(16, 1)])
def test_the_views_of_a_folder_fit_and_log_no_error(browser: Any, unpacked: Any, name: str) -> None:
    """Sound and damaged folders of both kinds, and the first message of each."""
    with served(unpacked(name)) as address:
        for page in ("/0/", "/0/queues", "/0/groups", "/0/messages", "/0/findings"):
            check_page(browser, address, page, PHONE)
        show(browser, address, "/0/messages", PHONE)
        links = [link.get_attribute("href") for link in browser.find_elements("css selector", "td a[href*='/message?']")]
        for link in links[:1]:
            check_page(browser, address, link.partition(address.partition("/?")[0])[2], PHONE)


def check_page(browser: Any, address: str, page: str, width: int) -> None:
    """Assert that a page fits, makes no other request, logs no error, and names its parts."""
    from selenium.webdriver.common.keys import Keys

    browser.get_log("performance")
    browser.get_log("browser")
    show(browser, address, page, width)
    base = address.partition("/?")[0]
    assert [url for url in requests(browser) if not url.startswith(("data:", base))] == []
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")]
    roles = ("heading", "region", "columnheader", "link", "button", "img", "image", "textbox", "navigation")
    assert all(name for role, name in named if role in roles)
    levels = browser.execute_script("return [...document.querySelectorAll('h1,h2,h3')].map(one => +one.tagName[1])")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    browser.find_element("tag name", "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to the content"


def test_a_person_checks_a_store_and_resets_a_group(browser: Any, address: str) -> None:
    """The forms of the pages are accepted, with the origin and the token that a browser sends."""
    from selenium.webdriver.support.wait import WebDriverWait

    show(browser, address, "/0/findings", DESK)
    browser.find_element("css selector", "main button").click()
    WebDriverWait(browser, 60).until(lambda _: "Repair plan" in browser.page_source)
    assert "Intact" in browser.page_source
    browser.get(address.partition("/?")[0] + "/0/change/reset")
    for name, value in (("group", "billing"), ("topic", "orders"), ("to", "latest")):
        browser.find_element("id", name).send_keys(value)
    browser.find_element("xpath", "//button[text()='Show what this does']").click()
    WebDriverWait(browser, 20).until(lambda _: "Nothing was changed" in browser.page_source)
    browser.find_element("xpath", "//button[text()='Do it']").click()
    WebDriverWait(browser, 20).until(lambda _: "Done" in browser.page_source)
    browser.get(address.partition("/?")[0] + "/0/groups.json")
    WebDriverWait(browser, 20).until(lambda _: '"lag":0' in browser.page_source)
