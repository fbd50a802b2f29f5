"""A headless Chromium that opens the report with any size of the window, light or dark, with or without scripts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-gpu")


class Browser:
    """A browser with one page."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        for argument in ARGUMENTS:
            options.add_argument(argument)
        options.binary_location = shutil.which("chromium") or "chromium"
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))

    def open(self, page: Path, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True) -> Browser:
        """Load a page, and discard the earlier entries of the logs."""
        chosen = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [chosen]})
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(page.as_uri())
        return self

    def js(self, code: str, *arguments: Any) -> Any:
        """Return the result of JavaScript code."""
        return self.driver.execute_script(code, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def element(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def shown(self) -> list[str]:
        """Return the names of the visible hosts, from top to bottom."""
        return self.js(
            "return [...document.querySelectorAll('main > .wide > table > tbody')].filter(host => host.offsetHeight)"
            ".map(host => host.querySelector('th.host').dataset.key)"
        )

    def complaints(self) -> list[str]:
        """Return the messages of the browser's console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that the page has requested since it was opened, without data URIs."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]

    def picture(self, path: Path) -> None:
        """Save a screenshot."""
        self.driver.save_screenshot(str(path))

    def close(self) -> None:
        self.driver.quit()
