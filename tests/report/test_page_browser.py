"""The pages in a browser: what a reader of any screen, scheme or keyboard meets."""

import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.chrome.service import Service

from lagformer import LagformerClassifier
from lagformer.data import Collection, load_ucr
from lagformer.report import subject as subject_module
from lagformer.report.page import report
from lagformer.report.subject import Subject, open_model, open_run
from lagformer.report.timeline import timeline_page
from lagformer.scan import ScannedWindow

pytestmark = pytest.mark.xdist_group("browser")

RNG = np.random.default_rng(0)
EVIL = [
    '<img src=x onerror="document.title=1">',
    "</script><script>document.title=2</script>",
    "\"quotes\" & 'ticks'" + "x" * 80,
]
PAGES = ["forda", "sixty", "channels", "unequal", "stopped", "partial", "scan"]
VIEWS = list(itertools.product([360, 1440], ["light", "dark"]))


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        missing = "no chromium: apt-get install chromium chromium-driver"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of every kind, made by models of one epoch."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject_module, "available_ucr", list)  # reading fifty sets takes seconds
        return written(folder)


def written(folder: Path) -> dict[str, Path]:
    html = {
        "forda": report(forda(folder), command="lagformer report forda").html,
        "sixty": report(saved(folder, "sixty", *many_classes(60))).html,
        "channels": report(saved(folder, EVIL[0].replace("/", ""), *three_channels())).html,
        "unequal": report(saved(folder, "unequal", *unequal_lengths())).html,
        "stopped": report(stopped(folder)).html,
        "partial": report(partial(folder)).html,
        "scan": scan_page(),
    }
    for name, text in html.items():
        (folder / f"{name}.html").write_text(text, "utf-8")
    return {name: folder / f"{name}.html" for name in html}


def saved(folder: Path, name: str, X: list[np.ndarray], y: np.ndarray) -> Subject:
    """Train on one half, score on the other; file names are markup."""
    model = LagformerClassifier("olympiad", max_epochs=1, random_state=0, validation_fraction=0.3)
    half = len(X) // 2
    model.fit(X[:half], y[:half]).save(folder / name)
    names = [f"<b onclick=alert(1)>{i}.wav</b>" for i in range(half, len(X))]
    data = Collection.from_arrays(X[half:], y[half:], names=names, source=f"{name}.csv")
    return open_model(folder / name, data)


def many_classes(count: int) -> tuple[list[np.ndarray], np.ndarray]:
    y = np.arange(4 * count) % count
    return [np.sin((0.05 + 0.01 * c) * np.arange(60) + i) for i, c in enumerate(y)], y


def three_channels() -> tuple[list[np.ndarray], np.ndarray]:
    y = np.arange(24) % 3
    return [RNG.standard_normal((3, 90)) + c for c in y], np.array(EVIL)[y]


def unequal_lengths() -> tuple[list[np.ndarray], np.ndarray]:
    y = np.arange(24) % 2
    return [np.sin((0.2 + 0.3 * c) * np.arange(20 + 7 * i)) for i, c in enumerate(y)], y


def forda(folder: Path) -> Subject:
    """An untested model, trained for an epoch on a few series of FordA, raw: its labels leak."""
    train, test = (split.subset(np.arange(120)) for split in load_ucr("FordA"))
    model = LagformerClassifier("olympiad", max_epochs=1, random_state=0).fit(train)
    model.save(folder / "forda")
    subject = open_model(folder / "forda", test)
    rows = [
        {"data": data, "method": method, "macro_f1": 0.9, "parameters": 5,
         "macro_f1_interval": [0.8, 0.95]}
        for data in ("raw", "dithered", "fordb") for method in ("random", "lagformer")
        for _ in range(2)
    ]  # fmt: skip
    return Subject(**(vars(subject) | {"train": train, "rows": rows}))


def stopped(folder: Path) -> Subject:
    """A run folder as an interruption leaves it."""
    run = folder / "run"
    home = run / "models" / "raw-seed0-test-lagformer"
    home.mkdir(parents=True)
    settings = {"data": ["raw"], "seeds": [0], "preset": "olympiad", "epochs": 80}
    (run / "run.json").write_text(json.dumps({"settings": settings, "data": {"raw": "0"}}))
    write_history(home, 7)
    return open_run(run)


def partial(folder: Path) -> Subject:
    """What an interrupted `lagformer train` leaves, without its checkpoint."""
    (folder / "engine.partial").mkdir()
    write_history(folder / "engine.partial", 1)
    return open_model(folder / "engine")


def write_history(folder: Path, epochs: int) -> None:
    records = [{"epoch": i + 1, "train_loss": 1 / (i + 1), "seconds": 1} for i in range(epochs)]
    (folder / "history.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))


def scan_page() -> str:
    labels = [EVIL[i // 40 % 3] for i in range(200)]
    windows = [
        ScannedWindow(50 * i, 100, 8000.0, label, 0.5 + 0.4 * RNG.random())
        for i, label in enumerate(labels)
    ]
    return timeline_page(windows, recording=EVIL[0], model=EVIL[1])


def show(browser: webdriver.Chrome, page: Path, width: int = 1440, scheme: str = "light") -> None:
    """Open a page from disk, everything unfolded."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    scheme_feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme_feature]})
    browser.get(page.as_uri())
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_loaded_and_nothing_complains(
    name: str, browser: webdriver.Chrome, pages: dict[str, Path]
) -> None:
    browser.get_log("performance")
    browser.get_log("browser")
    show(browser, pages[name])
    assert browser.get_log("browser") == []
    events = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    requests = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    assert {url for url in requests if not url.startswith("data:")} == {pages[name].as_uri()}
    assert browser.execute_script("return document.scripts.length + document.images.length") == 0


OVERFLOWING = """
const width = innerWidth, found = [];
for (const e of document.querySelectorAll('body *')) {
  if (e.closest('.scroll') && !e.matches('.scroll') || e.closest('.skip')) continue;
  const box = e.getBoundingClientRect();
  if (box.width && (box.right > width + 0.5 || box.left < -0.5))
    found.push(e.tagName + '.' + e.getAttribute('class') + ' ' + e.textContent.slice(0, 40));
}
return [document.documentElement.scrollWidth, found];
"""


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_screen(
    name: str, width: int, browser: webdriver.Chrome, pages: dict[str, Path]
) -> None:
    show(browser, pages[name], width)
    scroll_width, found = browser.execute_script(OVERFLOWING)
    assert found == []
    assert scroll_width <= width


FAINT = """
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const rgba = color => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255];
};
const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3]));
const luminance = c => {
  const [r, g, b] = c.map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = e => {
  const layers = [];
  for (; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
  return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
};
const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let seen = 0;
while (walker.nextNode()) {
  const e = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !e.getClientRects().length) continue;
  seen++;
  const style = getComputedStyle(e), base = behind(e);
  const [a, b] = [luminance(base),
    luminance(over(rgba(e.closest('svg') ? style.fill : style.color), base))];
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) found.push([contrast, e.tagName, e.className, e.textContent.slice(0, 40)]);
}
return [seen, luminance(behind(document.body)), found];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_text_stands_out_from_what_is_behind_it(
    name: str, scheme: str, browser: webdriver.Chrome, pages: dict[str, Path]
) -> None:
    show(browser, pages[name], scheme=scheme)
    seen, paper, found = browser.execute_script(FAINT)
    assert seen > 20
    assert found == []
    assert (paper > 0.5) == (scheme == "light")


FOCUSABLE = """
const all = [...document.querySelectorAll('a[href], summary, button, input, [tabindex]')];
window.wanted = all.filter(e => e.checkVisibility());
const scrolling = [...document.querySelectorAll('body *')].filter(e =>
  ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)
  && (e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight));
return [wanted.length, scrolling.filter(e => e.tabIndex !== 0 || !e.getAttribute('aria-label'))
  .map(e => e.outerHTML.slice(0, 80))];
"""
FOCUSED = """
const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
return [wanted.indexOf(e), style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
  box.width > 0 && box.left >= 0];
"""


@pytest.mark.parametrize("name", PAGES)
def test_everything_is_reached_by_the_keyboard(
    name: str, browser: webdriver.Chrome, pages: dict[str, Path]
) -> None:
    show(browser, pages[name], 360)
    count, unreachable = browser.execute_script(FOCUSABLE)
    assert unreachable == []
    assert count > 1
    reached = []
    for _ in range(count):
        ActionChains(browser, duration=0).send_keys(Keys.TAB).perform()
        index, outlined, visible = browser.execute_script(FOCUSED)
        assert outlined
        assert visible
        reached.append(index)
    assert reached == list(range(count)), "in the order of the page"


@pytest.mark.parametrize("name", PAGES)
def test_pictures_have_words(name: str, browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    show(browser, pages[name])
    words = browser.execute_script(
        "return [...document.querySelectorAll('svg')].filter(e => !e.parentElement.closest('svg'))"
        ".map(e => [e.getAttribute('role'), e.getAttribute('aria-label')])"
    )
    assert len(words) > 0
    assert all(role == "img" and len(label) > 10 for role, label in words)
    assert browser.execute_script("return document.querySelectorAll('h1').length") == 1
    assert browser.execute_script("return document.documentElement.lang") == "en"


def shown(browser: webdriver.Chrome) -> Any:
    return browser.execute_script("return [document.title, document.body.innerText]")


def test_markup_in_labels_and_names_is_text(
    browser: webdriver.Chrome, pages: dict[str, Path]
) -> None:
    show(browser, pages["channels"])
    title, text = shown(browser)
    assert title.startswith("<img src=x")
    for label in EVIL:
        assert label in text
    assert "<b onclick=alert(1)>" in text
    assert browser.execute_script("return document.querySelectorAll('b, img, script').length") == 0
    show(browser, pages["scan"])
    title, text = shown(browser)
    assert title.startswith(EVIL[0])
    assert all(label in text for label in EVIL)


def test_the_answer_comes_first(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    show(browser, pages["forda"], 360)
    _, text = shown(browser)
    assert 0 <= text.index("leaky") < text.index("macro F1") < text.index("Confusion matrix")
    show(browser, pages["stopped"])
    _, text = shown(browser)
    assert "stopped early, not scored" in text
    assert "The run has not ended" in text
    assert "epochs of 80 are done" in text
    assert "Confusion matrix" not in text


def test_paper_is_white_unfolded_and_has_no_navigation(
    browser: webdriver.Chrome, pages: dict[str, Path]
) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    browser.get(pages["forda"].as_uri())
    background, nav, height, content = browser.execute_script(
        "const style = e => getComputedStyle(document.querySelector(e));"
        "return [style('body').backgroundColor, style('nav').display, style('.scroll').maxHeight,"
        "document.querySelector('details td').getClientRects().length]"
    )
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert (background, nav, height) == ("rgb(255, 255, 255)", "none", "none")
    assert content > 0
