"""The pages in a browser: nothing is wider than the page, on a desk and on a telephone.

What a frame holds is measured by a page around it, since a report runs no script."""

import functools
import html
import http.server
import json
import re
import shutil
import subprocess
import threading

import pytest

from fedloom.report.compare import compare
from fedloom.report.page import write_report
from tests.report.test_judged import GOALS, folder_of
from tests.report.test_report import lone, make, record, sweep

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
WIDTHS = (1400, 400)
OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-sync", "--disable-background-networking", "--disable-component-update"),
    *("--window-size=1600,1200", "--virtual-time-budget=20000", "--dump-dom"),
]

AROUND = """<!doctype html><meta charset="utf-8"><body>FRAMES<script>
onload = () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, width = page.documentElement.clientWidth
    const cut = [...page.querySelectorAll("body *")].filter(one =>
      one.getBoundingClientRect().right > width + 1 ||
      (getComputedStyle(one).display != "inline" && one.scrollWidth > one.clientWidth + 1))
    return {
      page: frame.dataset.page, inner: frame.contentWindow.innerWidth,
      scroll: page.documentElement.scrollWidth, cut: cut.map(one => one.outerHTML.slice(0, 80)),
      images: [...page.images].map(image => image.currentSrc.length > 0 && image.naturalWidth > 0),
    }
  })
  const report = document.createElement("pre")
  report.id = "found"
  report.textContent = JSON.stringify(found)
  document.body.append(report)
}
</script>"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.fixture
def serve(tmp_path):
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def long_names(folder):
    """Names that no line has room for."""
    make(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    silos = manifest["data"]["silos"]
    silos["x" * 70] = silos.pop("insurer") | {
        "shape": [40],
        "columns": ["long_column_name" * 5] * 40,
    }
    manifest |= {"title": "A_title_without_a_blank_" * 6, "notes": ["note" * 60]}
    manifest["sources"] = {"a/long/path/" * 9: "c0ffee" * 11}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "run.toml").write_text(f"[data]\nname = {'x' * 400!r}\n")
    return folder


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_nothing_is_wider_than_the_page(tmp_path, serve):
    folders = list(sweep(tmp_path / "sweep", rates=[0.01 * k for k in range(12)], seeds=(0, 1)))
    paths = [
        write_report(make(tmp_path / "usual")),
        write_report(lone(tmp_path / "lone")),
        write_report(long_names(tmp_path / "long")),
        write_report(make(tmp_path / "begun", parts={"tdcd": [record(0, 0.1)]}, finished=None)),
        *(write_report(folder_of(goal, tmp_path / goal)) for goal in GOALS),
        compare(folders, tmp_path / "compare.png").with_suffix(".html"),
    ]
    frames = "".join(
        f'<iframe data-page="{path.relative_to(tmp_path)}" src="{path.relative_to(tmp_path)}" '
        f'style="width:{width}px;height:900px;border:0"></iframe>'
        for path in paths
        for width in WIDTHS
    )
    (tmp_path / "around.html").write_text(AROUND.replace("FRAMES", frames))
    ran = subprocess.run(
        [BROWSER, *OPTIONS, f"--user-data-dir={tmp_path / 'browser'}", f"{serve}/around.html"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    (printed,) = re.findall('<pre id="found">(.*?)</pre>', ran.stdout, re.DOTALL)
    found = json.loads(html.unescape(printed))
    assert [one["inner"] for one in found] == [*WIDTHS] * len(paths)
    for one in found:
        assert one["scroll"] <= one["inner"], one
        assert not one["cut"], one
        assert all(one["images"]), one["page"]
    assert found[0]["images"]
