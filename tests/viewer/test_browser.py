"""The page in a real browser: headless Chromium clicks, types and drags, and the pictures on the page are read back.

Debian's packages `chromium` and `chromium-driver` are enough; where they are not installed the test is skipped.
"""

import base64
import shutil
from collections.abc import Callable, Iterator

import pytest
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from dvaepp.models.trained import Trained
from tests.viewer.serving import Client, as_bytes, same_picture
from tests.viewer.test_answers import _bits as as_code

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="no Chromium with a driver is installed: apt-get install chromium chromium-driver",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The page of a viewer, freshly opened."""

    def __init__(self, driver: webdriver.Chrome, client: Client, tool: str, width: int = 1280) -> None:
        self.driver = driver
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get("about:blank")
        driver.get(f"{client.address}#{tool}")
        self.until(lambda: self.run("return document.documentElement.dataset.ready") == "true")

    def run(self, script: str, *arguments: object) -> object:
        return self.driver.execute_script(script, *arguments)

    def until(self, holds: Callable[[], object]) -> None:
        """Wait for it, and say what the page complains of where it never comes."""
        WebDriverWait(self.driver, 60, 0.05).until(lambda _: holds(), self.text("problem") or "the page did not answer")

    def find(self, id: str) -> WebElement:
        return self.driver.find_element(By.ID, id)

    def text(self, id: str) -> str:
        found = self.driver.find_elements(By.ID, id)
        return str(found[0].get_property("textContent")) if found else ""

    def click(self, id: str) -> None:
        self.find(id).click()

    def cell(self, unit: int) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, f".cell[data-unit='{unit}']")

    @property
    def code(self) -> str:
        """The switches as they stand."""
        return str(
            self.run("return cells.map((c) => (c.getAttribute('aria-checked') === 'true' ? '1' : '0')).join('')")
        )

    def settle(self) -> str:
        """Wait until the image shown is that of the switches, and return the code."""
        self.until(lambda: self.run("return document.documentElement.dataset.shown") == self.code)
        return self.code

    def pixels(self, canvas: str = "image") -> bytes:
        """The red channel of what a canvas shows."""
        script = "const c = document.getElementById(arguments[0]); return c.toDataURL('image/png').split(',')[1]"
        return _red(base64.b64decode(str(self.run(script, canvas))))

    def sheet(self, id: str) -> list[WebElement]:
        return self.find(id).find_elements(By.TAG_NAME, "button")


def _red(png: bytes) -> bytes:
    import io

    from PIL import Image

    with Image.open(io.BytesIO(png)) as picture:
        return picture.convert("RGB").getchannel("R").tobytes()


def test_bits_are_switched_by_mouse_and_by_keyboard_and_the_image_follows(
    browser: webdriver.Chrome, viewer: tuple[Trained, Client]
) -> None:
    trained, client = viewer
    page = Page(browser, client, "bits")
    start = page.settle()
    before = page.pixels()
    assert before == page.pixels("before") and same_picture(before, as_bytes(trained.decode(as_code(start))))
    page.cell(3).click()
    after = page.settle()
    assert [n for n in range(200) if start[n] != after[n]] == [3] and page.text("changed") == "1"
    assert same_picture(page.pixels(), as_bytes(trained.decode(as_code(after)))) and page.pixels() != before
    assert page.pixels("before") == before and page.text("unit").startswith("Unit 4 is")
    keys = ActionChains(browser)
    for key in (Keys.ARROW_RIGHT, Keys.SPACE, Keys.ARROW_DOWN, Keys.SPACE, Keys.HOME, Keys.SPACE):
        keys.send_keys(key)
    keys.perform()
    typed = page.settle()
    columns = int(
        str(page.run("return getComputedStyle(document.querySelector('.cells')).gridTemplateColumns.split(' ').length"))
    )
    assert [n for n in range(200) if start[n] != typed[n]] == [0, 3, 4, 4 + columns]
    page.click("undo")
    assert page.settle()[0] == start[0]
    page.click("restart")
    assert page.settle() == start and page.pixels() == before


def test_samples_walk_and_nearest_lead_to_other_codes(
    browser: webdriver.Chrome, viewer: tuple[Trained, Client]
) -> None:
    trained, client = viewer
    page = Page(browser, client, "samples")
    start = page.settle()
    page.sheet("drawn")[5].click()
    page.until(lambda: page.code != start)
    sampled = page.settle()
    page.click("tab-walk")
    page.until(lambda: page.text("step-reading").startswith("Step 0 of"))
    steps = int(page.text("step-reading").split()[-1])
    page.find("step").send_keys(Keys.ARROW_RIGHT)
    page.until(lambda: page.text("step-reading").startswith("Step 1 of"))
    one = page.settle()
    assert sum(a != b for a, b in zip(sampled, one, strict=True)) == 1 and "unit" in page.text("step-reading")
    page.find("step").send_keys(Keys.END)
    page.until(lambda: page.text("step-reading").startswith(f"Step {steps} of"))
    end = page.settle()
    assert sum(a != b for a, b in zip(sampled, end, strict=True)) == steps
    assert same_picture(page.pixels(), page.pixels("to"))
    assert same_picture(page.pixels(), as_bytes(trained.decode(as_code(end))))
    page.click("tab-nearest")
    page.until(lambda: page.sheet("found"))
    hits = page.sheet("found")
    assert hits[0].text == "0 bits"  # the end of the walk is the code of an image of the data set
    hits[-1].click()
    page.until(lambda: page.code != end)
    assert page.sheet("found") and page.settle() != end


def test_painted_pixels_are_completed(browser: webdriver.Chrome, viewer: tuple[Trained, Client]) -> None:
    page = Page(browser, viewer[1], "paint")
    canvas = page.find("canvas")
    hidden = page.pixels("canvas")
    assert len(set(hidden)) == 1
    drag = ActionChains(browser).move_to_element_with_offset(canvas, 0, -100).click_and_hold()
    drag.move_by_offset(0, 160).release().perform()
    drawn = [n for n, level in enumerate(page.pixels("canvas")) if level == 255]
    assert len(drawn) >= 20 and len({n % 28 for n in drawn}) == 2  # a line of two pixels' width
    page.run("document.getElementById('rounds').value = '16'")
    page.click("fill")
    page.until(lambda: page.sheet("completions"))
    assert len(page.sheet("completions")) == 7
    script = "return document.querySelector('#completions canvas').toDataURL('image/png').split(',')[1]"
    completed = _red(base64.b64decode(str(page.run(script))))
    assert set(completed) == {0, 255} and all(completed[n] == 255 for n in drawn)
    page.sheet("completions")[0].click()
    page.settle()
    canvas.send_keys(Keys.ARROW_LEFT, Keys.SPACE)
    assert "white" in page.text("cursor")
    script = "return [...$('canvas').getContext('2d').getImageData(easel.x, easel.y, 1, 1).data]"
    assert page.run(script) == [247, 199, 160, 255]  # the cursor is orange: it can be told from the white it is on


def test_the_table_of_units_is_sorted_and_leads_to_a_bit(
    browser: webdriver.Chrome, viewer: tuple[Trained, Client]
) -> None:
    page = Page(browser, viewer[1], "units")
    page.until(lambda: "of 200 units are active" in page.text("units-lead"))
    rows = browser.find_elements(By.CSS_SELECTOR, "#rows tr")
    kl = [float(row.find_elements(By.TAG_NAME, "td")[1].text) for row in rows]
    assert len(kl) == 20 and kl == sorted(kl, reverse=True)
    unit = int(rows[0].find_element(By.TAG_NAME, "button").text)
    rows[0].find_element(By.TAG_NAME, "button").click()
    page.until(lambda: page.find("bits").is_displayed())
    assert browser.switch_to.active_element.get_attribute("aria-label") == f"Unit {unit}"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_tool_fits_the_screen(
    browser: webdriver.Chrome, viewer: tuple[Trained, Client], width: int, scheme: str
) -> None:
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    page = Page(browser, viewer[1], "bits", width)
    for tool in ("bits", "samples", "walk", "paint", "units", "nearest"):
        page.run("scrollTo(0, 0)")
        page.click(f"tab-{tool}")
        page.until(lambda tool=tool: page.find(tool).is_displayed())  # type: ignore[misc]
        assert page.run("return document.documentElement.scrollWidth <= innerWidth"), tool
    ground = str(page.run("return getComputedStyle(document.body).backgroundColor"))
    assert (ground == "rgb(246, 247, 249)") == (scheme == "light")
    small = (
        "return [...document.querySelectorAll('button')].filter((b) => b.offsetParent && b.offsetHeight < 28).length"
    )
    assert page.run(small) == 0


def test_nothing_is_loaded_from_elsewhere_and_nothing_has_a_nameless_control(
    browser: webdriver.Chrome, viewer: tuple[Trained, Client]
) -> None:
    page = Page(browser, viewer[1], "bits")
    loaded = page.run("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert isinstance(loaded, list) and loaded
    assert all(str(name).startswith(viewer[1].address) for name in loaded)
    controls = "return [...document.querySelectorAll('button, input, select, canvas, [role=tabpanel]')]"
    nameless = """.filter((each) => !(each.ariaLabel || each.textContent.trim() || each.labels?.length
        || each.getAttribute('aria-labelledby') || each.closest('button')?.ariaLabel))
        .map((each) => each.outerHTML)"""
    assert page.run(controls + nameless) == []
    assert browser.get_log("browser") == []  # no error of the script, nothing that the policy had to stop
