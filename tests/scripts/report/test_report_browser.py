"""The report in a real browser, at the widths of a phone and of a desktop."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync"
WIDTHS = {"phone": 390, "tablet": 820, "laptop": 1100, "desktop": 1440}
MEASURE = """
const results = {};
const measure = (page, width) => {
  const found = {texts: 0, small: [], clipped: [], crowded: [], broken: [], wide: [], width: page.documentElement.scrollWidth};
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
    if (place.width && place.right > width + 0.5 && !element.closest(".scroll *")) {
      found.broken.push(element.outerHTML.slice(0, 90));
    }
  }
  for (const table of page.querySelectorAll("main .scroll")) {
    if (width >= 1400 && table.scrollWidth > table.clientWidth + 1) found.wide.push(table.ariaLabel);
  }
  return found;
};
for (const frame of document.querySelectorAll("iframe")) {
  frame.onload = () => {
    results[frame.id] = measure(frame.contentDocument, frame.clientWidth);
    document.querySelector("pre").textContent = JSON.stringify(results);
  };
  frame.srcdoc = document.querySelector("textarea").value;
}
"""


def measured(browser: str, page: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """What a browser finds on the page in a frame of every width: browsers have a least width of their own windows."""
    harness = folder / f"{page.stem}-frames.html"
    frames = "".join(
        f'<iframe id="{name}" style="width:{width}px;height:900px;border:0"></iframe>' for name, width in WIDTHS.items()
    )
    source = html.escape(page.read_text(encoding="utf-8"))
    harness.write_text(
        f'<!DOCTYPE html><meta charset="utf-8">{frames}<pre></pre><textarea hidden>{source}</textarea><script>{MEASURE}</script>',
        encoding="utf-8",
    )
    command = [browser, *QUIET.split(), f"--user-data-dir={folder / 'profile'}", "--window-size=4000,1000"]
    command += ["--virtual-time-budget=10000", "--dump-dom", harness.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    actual = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
    assert actual and actual[1], done.stderr[-2000:]
    result: dict[str, dict[str, Any]] = json.loads(html.unescape(actual[1]))
    return result


@pytest.mark.parametrize("kind", ["ensemble", "campaign", "run", "disturbed", "imported"])
def test_pages_and_their_labels_fit_from_phone_to_desktop(pages: dict[str, Path], tmp_path: Path, kind: str) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no headless browser; install chromium to check the layout of reports")
    actual = measured(browser, pages[kind], tmp_path)
    assert set(actual) == set(WIDTHS)
    for name, width in WIDTHS.items():
        assert actual[name]["width"] <= width and actual[name]["texts"] > 30
        for problem in ("broken", "clipped", "crowded", "small", "wide"):
            assert not actual[name][problem]
