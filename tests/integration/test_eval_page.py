"""The report's page in a real browser: it is laid out without overflow, on a desk and on a phone, and asks for nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[1] / "unit" / "evals" / "golden" / "report.html"
# Reads the layout once it is there. Chromium's smallest window is 500 wide: the phone is a frame.
PROBE = """
<body><iframe id="f" width="WIDTH" height="900"></iframe><pre id="out"></pre><script>
const frame = document.getElementById("f");
frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement;
  const box = (e) => { const r = e.getBoundingClientRect(); return [r.left, r.right, r.top, r.bottom]; };
  document.getElementById("out").textContent = JSON.stringify({
    wide: root.scrollWidth, inner: frame.clientWidth, verdict: page.querySelector("section.verdict b").textContent,
    tone: getComputedStyle(page.querySelector("section.verdict b")).color, charts: [...page.querySelectorAll("svg")].map(box),
    points: [...page.querySelectorAll("svg circle")].map(box),
    fetched: frame.contentWindow.performance.getEntriesByType("resource").length,
  });
};
frame.srcdoc = PAGE;
</script></body>
"""


@pytest.fixture(scope="module")
def browser() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is missing in CI")
        pytest.skip("no browser here: apt-get install chromium")
    return found


def look(browser: str, folder: Path, width: int) -> dict[str, Any]:
    """The page's layout in a frame of this width."""
    page = json.dumps(GOLDEN.read_text()).replace("</", "<\\/")
    (folder / "probe.html").write_text(PROBE.replace("WIDTH", str(width)).replace("PAGE", page))
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}/profile",
        "--window-size=1400,1000", "--virtual-time-budget=4000", "--dump-dom", f"file://{folder}/probe.html",
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True).stdout
    found = re.search(r'<pre id="out">(\{.*?\})</pre>', shown, re.DOTALL)
    assert found, shown[-500:]
    return dict(json.loads(found[1]))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("width", [1120, 390])
def test_the_page_in_a_browser(browser: str, tmp_path: Path, width: int) -> None:
    seen = look(browser, tmp_path, width)
    assert seen["verdict"] == "non-inferior"
    assert seen["tone"] == "rgb(18, 128, 92)", "the verdict's colour says what it is"
    assert seen["wide"] <= seen["inner"], "nothing sticks out to the side"
    assert seen["fetched"] == 0
    assert len(seen["charts"]) == 2
    for left, right, top, bottom in seen["points"]:
        assert any(c[0] <= left and right <= c[1] and c[2] <= top and bottom <= c[3] for c in seen["charts"])
    (first, second) = seen["charts"]
    assert (first[1] <= second[0]) == (width == 1120), "side by side on a desk, one under the other on a phone"
