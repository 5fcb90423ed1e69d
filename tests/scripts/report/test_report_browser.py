"""The report in a real browser, at the widths of a phone and of a desktop."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hydragnn.scripts.report import write_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MEASURE = """
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument, found = {texts: 0, small: [], clipped: [], crowded: [], broken: []};
  found.width = page.documentElement.scrollWidth;
  for (const svg of page.querySelectorAll("svg.figure")) {
    const box = svg.getBoundingClientRect();
    if (!box.width) continue;
    const scale = box.width / svg.viewBox.baseVal.width, places = [];
    for (const text of svg.querySelectorAll("text")) {
      const place = text.getBoundingClientRect(), name = svg.getAttribute("aria-label") + ": " + text.textContent;
      found.texts += 1;
      if (parseFloat(getComputedStyle(text).fontSize) * scale < 9.5) found.small.push(name);
      if (place.left < box.left - 1.5 || place.right > box.right + 1.5 || place.top < box.top - 1.5
          || place.bottom > box.bottom + 1.5) found.clipped.push(name);
      for (const [other, was] of places) {
        const across = Math.min(place.right, was.right) - Math.max(place.left, was.left);
        const down = Math.min(place.bottom, was.bottom) - Math.max(place.top, was.top);
        if (across > 1 && down > 4) found.crowded.push(name + " / " + other);
      }
      places.push([text.textContent, place]);
    }
  }
  for (const element of page.querySelectorAll("main h1, main h2, main h3, main p, main dd, main figure, main .scroll")) {
    const place = element.getBoundingClientRect();
    if (place.width && place.right > WIDTH + 0.5 && !element.closest(".scroll *")) found.broken.push(element.outerHTML.slice(0, 90));
  }
  document.querySelector("pre").textContent = JSON.stringify(found);
};
frame.srcdoc = document.querySelector("textarea").value;
"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if found is None:
        pytest.skip("no headless browser; install chromium to check the layout of reports")
    return found


def measured(browser: str, page: Path, width: int, folder: Path) -> dict[str, Any]:
    """What a browser finds on the page in a frame of that width: browsers have a least width of their own windows."""
    harness = folder / f"{page.stem}-{width}.html"
    source = html.escape(page.read_text(encoding="utf-8"))
    script = MEASURE.replace("WIDTH", str(width))
    harness.write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><iframe style="width:{width}px;height:900px;border:0"></iframe>'
        f"<pre></pre><textarea hidden>{source}</textarea><script>{script}</script>",
        encoding="utf-8",
    )
    command = [browser, *QUIET, f"--user-data-dir={folder / 'profile'}", "--window-size=1600,1000"]
    command += ["--virtual-time-budget=10000", "--dump-dom", harness.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
    assert found and found[1], done.stderr[-2000:]
    result: dict[str, Any] = json.loads(html.unescape(found[1]))
    return result


@pytest.mark.parametrize("width", [390, 1440], ids=["phone", "desktop"])
@pytest.mark.parametrize("kind", ["ensemble", "campaign", "run"])
def test_pages_fit_their_screen_and_their_labels_are_whole_and_legible(browser, samples, tmp_path, kind, width):
    found = measured(browser, write_report(getattr(samples, kind), tmp_path / f"{kind}.html"), width, tmp_path)
    assert found["width"] <= width and not found["broken"]
    assert found["texts"] > 30
    assert not found["clipped"]
    assert not found["crowded"]
    assert not found["small"]
