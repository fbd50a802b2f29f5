"""Headless Chromium, at the sizes and in the colours that the report is looked at."""

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
    """One browser with one page."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        for argument in ARGUMENTS:
            options.add_argument(argument)
        options.binary_location = shutil.which("chromium") or "chromium"
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))

    def open(self, page: Path, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True) -> Browser:
        """Load a page anew; what was said before is forgotten."""
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
        """What this JavaScript returns."""
        return self.driver.execute_script(code, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def element(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def shown(self) -> list[str]:
        """Names of the hosts that are shown, from top to bottom."""
        return self.js(
            "return [...document.querySelectorAll('main > .wide > table > tbody')].filter(host => host.offsetHeight)"
            ".map(host => host.querySelector('th.host').dataset.key)"
        )

    def complaints(self) -> list[str]:
        """What the console says."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened, the page's own pictures left out."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]

    def picture(self, path: Path) -> None:
        """Save what is to be seen."""
        self.driver.save_screenshot(str(path))

    def close(self) -> None:
        self.driver.quit()
