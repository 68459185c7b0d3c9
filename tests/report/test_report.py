"""The report of a run and the comparison of runs, from a small made-up run folder."""

import base64
import csv
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from fedloom.core.errors import DataError
from fedloom.report import style, words
from fedloom.report.bars import histogram
from fedloom.report.compare import compare, compare_table
from fedloom.report.costs import by_kind, by_part, by_tier
from fedloom.report.curves import close_up, curve, curves, drawn, panels
from fedloom.report.folder import read_run
from fedloom.report.holdings import OKABE_ITO, TEST, UNKNOWN, holdings
from fedloom.report.page import write_report
from fedloom.report.verdict import verdict

SILOS = ("bank", "insurer")
PNG = b"\x89PNG\r\n\x1a\n"


def record(round, score, silos=None, metric="accuracy"):
    made = {
        "round": round,
        "iteration": 10 * round,
        "time": 4.0 * round,
        "wall": 0.1 * round,
        "bytes": {"bottom": 1000 * round, "top": 200 * round},
        "train_loss": 1 - score / 2,
        "metrics": {metric: score, "f1": score - 0.01},
    }
    if silos:
        made["by_silo"] = {silo: {metric: v} for silo, v in zip(SILOS, silos, strict=True)}
    return made


def ledger(times=1):
    lines = [
        ("bottom", "up", "embedding", "a client's embeddings", 60 * times, 30_000 * times),
        ("bottom", "down", "model", "the hub's block", 60 * times, 10_000 * times),
        ("top", "across", "hub-embedding", "a silo's embeddings", 20 * times, 4_000 * times),
    ]
    names = ("tier", "direction", "kind", "about", "messages", "bytes")
    return {"lines": [dict(zip(names, line, strict=True)) for line in lines], "rounds": 10}


def put(folder, records, with_ledger=True):
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(r) + "\n" for r in records)
    (folder / "records.jsonl").write_text(text)
    if with_ledger:
        (folder / "ledger.json").write_text(json.dumps(ledger()))


def make(folder, *, parts=None, goal="classes", config=None, **manifest):
    """A run folder; `parts` are records by part, the main one first."""
    if parts is None:
        rounds = range(0, 11, 2)
        parts = {
            "tdcd": [record(r, 0.1 + 0.0862 * r) for r in rounds],
            "central": [record(r, 0.1 + 0.0871 * r) for r in rounds],
            "alone": [record(r, 0.1 + 0.05 * r, (0.1, 0.1 + 0.06 * r)) for r in rounds],
            "no-exchange": [record(r, 0.1 + 0.08 * r) for r in rounds],
        }
    for number, (name, records) in enumerate(parts.items()):
        put(folder / "baselines" / name if number else folder, records)
    config = config or {"algorithm": {"name": "tdcd", "lr": 0.1}, "engine": {"seed": 0}}
    (folder / "run.toml").write_text("[algorithm]\nname = 'tdcd'\n")
    held = {"shape": [5], "columns": [], "labels": True}
    summary = {
        "name": "loans",
        "goal": goal,
        "classes": ["a", "b"] if goal == "classes" else [],
        "rows": {"train": 100, "test": 20},
        "silos": {
            silo: {**held, "clients": {"x": [60, 9], "y": [40, 11]}, "classes": classes}
            for silo, classes in zip(SILOS, [{"x": [30, 30], "y": [20, 20]}] * 2, strict=True)
        },
    }
    facts = {
        "fedloom": "0.1",
        "algorithm": next(iter(parts)),
        "title": "Loans <b>cut</b> both ways, $5 & $6",
        "created": "2025-01-01T00:00:00+00:00",
        "finished": "2025-01-01T00:01:00+00:00",
        "interrupted": False,
        "config": config,
        "data": summary,
        "notes": ["7 rows were left out"],
        "sources": {"loans.csv": "c0ffee"},
        "seed": config["engine"]["seed"],
        "versions": {"python": "3.11", "torch": "2.6"},
        "commit": "abc1234",
        "machine": {"cores": 2, "device": "cpu"},
        "parts": list(parts),
    }
    (folder / "manifest.json").write_text(json.dumps(facts | manifest))
    return folder


class Outline(HTMLParser):
    """Checks that tags are closed in order; collects images and addresses."""

    EMPTY = frozenset({"meta", "br", "img", "!doctype"})

    def __init__(self, text):
        super().__init__()
        self.open, self.images, self.addresses, self.narrow = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_startendtag(self, tag, attrs):
        assert tag == "source"
        self.narrow.append(dict(attrs))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "img":
            self.images.append(attrs)
        self.addresses += [attrs[name] for name in ("src", "href") if name in attrs]
        if tag not in self.EMPTY:
            self.open.append(tag)
        assert tag not in ("script", "link", "iframe")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def report(folder):
    text = write_report(folder).read_text(encoding="utf-8")
    return text, Outline(text)


def test_the_page_needs_no_other_file(tmp_path):
    text, page = report(make(tmp_path))
    assert page.images
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    for image in page.images:
        assert image["alt"]
        assert base64.b64decode(image["src"].split(",")[1]).startswith(PNG)
    assert "url(" not in text
    assert "@import" not in text
    names = {path.stem for path in (tmp_path / "figures").glob("*.png")}
    assert names == {"metric", "end", "metrics", "loss", "holdings", "ledger", "parts"}
    assert len(page.images) == len(names)
    assert report(tmp_path)[0] == text  # again, the same


def test_the_page_says_what_came_of_it(tmp_path):
    text, _ = report(make(tmp_path))
    assert (
        "After 10 rounds TDCD reaches 96.2 % test accuracy; the pooled model on the same "
        "budget 97.1 %, the silos&#39; scores combined without exchange 90.0 %, a silo alone "
        "10.0\u201370.0 %. The exchange between silos added 6.2 percentage points and took 0 "
        "bytes more." in text
    )
    assert "Loans &lt;b&gt;cut&lt;/b&gt; both ways, $5 &amp; $6" in text
    for word in ("pooled (central)", "7 rows were left out", "c0ffee", "abc1234", "40.0 kB"):
        assert word in text
    assert "[algorithm]\nname = &#39;tdcd&#39;" in text
    assert "not finished" not in text
    assert "interrupted" not in text


@pytest.mark.parametrize(
    ("rule", "how"),
    [
        (0.31, "."),
        ("f1", ", chosen on validation rows for the best F1."),
        ({"missed": 5.0}, ", chosen .* lowest cost \\(5 for a missed row, 1 for a false alarm\\)."),
    ],
)
def test_the_threshold_is_said(tmp_path, rule, how):
    records = [record(r, 0.5, metric="auroc") | {"threshold": 0.1 * r} for r in range(5)]
    config = {"evaluation": {"threshold": rule}, "engine": {"seed": 0}}
    make(tmp_path, parts={"tdcd": records}, goal="binary", config=config)
    said = verdict(read_run(tmp_path))
    assert re.search(f"second class above a probability of 0.400{how}$", said)
    records[-1]["best"] = 2
    make(tmp_path, parts={"tdcd": records}, goal="binary", config=config)
    assert "a probability of 0.200" in verdict(read_run(tmp_path))
    make(tmp_path)
    assert "probability" not in verdict(read_run(tmp_path))


def test_a_run_that_goes_on(tmp_path):
    make(tmp_path, finished=None)
    (tmp_path / "baselines/no-exchange/records.jsonl").unlink()
    (tmp_path / "baselines/no-exchange/ledger.json").unlink()
    put(tmp_path / "baselines/alone", [record(2, 0.3, (0.2, 0.4))], with_ledger=False)
    text, _ = report(tmp_path)
    assert "This run is not finished" in text
    assert "no-exchange: nothing is recorded yet." in text
    assert "a silo alone 20.0\u201340.0 % (after 2 rounds)" in text


def test_a_run_that_was_cut_short(tmp_path):
    make(tmp_path, finished=None, interrupted=True)
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"round": 12, "iter')
    text, _ = report(tmp_path)
    assert "This run was interrupted" in text
    assert "the last line was cut short" in text
    assert "After 10 rounds" in text


def test_a_run_that_has_hardly_begun(tmp_path):
    make(tmp_path, parts={"tdcd": []}, finished=None)
    for name in ("records.jsonl", "ledger.json", "run.toml"):
        (tmp_path / name).unlink()
    text, page = report(tmp_path)
    assert "Nothing is recorded yet." in text
    assert [image["alt"] for image in page.images] == [
        "rows and features held by every silo and client"
    ]
    put(tmp_path, [record(0, 0.1)], with_ledger=False)
    assert "After 0 rounds TDCD reaches 10.0 % test accuracy." in report(tmp_path)[0]


def test_without_test_rows_there_is_the_loss(tmp_path):
    records = [{**record(r, r / 10), "metrics": {}} for r in range(5)]
    text, _ = report(make(tmp_path, parts={"tdcd": records}))
    assert "After 4 rounds TDCD reaches a training loss of 0.8." in text
    assert "There are no test metrics" in text
    assert not (tmp_path / "figures/metric.png").exists()
    assert (tmp_path / "figures/loss.png").exists()


def test_undefined_values_are_said_to_be(tmp_path):
    records = [record(r, 0.5, metric="auroc") for r in range(3)]
    records[-1]["metrics"]["auroc"] = None
    records[1]["metrics"]["f1"] = float("nan")
    records[1]["train_loss"] = float("inf")
    records[1]["time"] = None
    text, _ = report(make(tmp_path, parts={"tdcd": records}, goal="binary"))
    assert "has no defined test AUROC" in text
    assert "undefined" in text


@pytest.mark.parametrize(
    ("goal", "metric"), [("classes", "accuracy"), ("binary", "auroc"), ("number", "r2")]
)
def test_headlines(tmp_path, goal, metric):
    records = [{**record(1, 0.5), "metrics": {"f1": 0.1, metric: 0.5}}]
    run = read_run(make(tmp_path, parts={"tdcd": records}, goal=goal))
    assert run.headline == metric
    assert run.metrics == [metric, "f1"]
    assert run.finished


def test_what_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"is not a run folder: it has no manifest\.json"):
        read_run(tmp_path)
    make(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest\.json is damaged"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(DataError, match="no JSON object"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="names no algorithm"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_text('{"algorithm": "tdcd", "data": {"silos": [1]}}')
    with pytest.raises(DataError, match="does not say who holds what"):
        read_run(tmp_path)


def test_a_bare_manifest_will_do(tmp_path):
    make(tmp_path, parts={"tdcd": [record(1, 0.5)]})
    (tmp_path / "manifest.json").write_text('{"algorithm": "tdcd"}')
    text, _ = report(tmp_path)
    assert "After 1 round TDCD reaches 50.0 % test accuracy." in text
    assert f"<h1>{tmp_path.name}</h1>" in text
    assert "This run is not finished" in text


def test_a_damaged_run_is_refused(tmp_path):
    make(tmp_path)
    good = (tmp_path / "records.jsonl").read_text()
    (tmp_path / "records.jsonl").write_text("{}\n" + good)
    with pytest.raises(DataError, match=r"records\.jsonl, line 1, is damaged: not a record"):
        read_run(tmp_path)
    (tmp_path / "records.jsonl").write_text(good.replace('"metrics": {', '"metrics": [{', 1))
    with pytest.raises(DataError, match="line 1, is damaged"):
        read_run(tmp_path)
    (tmp_path / "records.jsonl").unlink()
    with pytest.raises(DataError, match=r"finished, but has no records\.jsonl"):
        read_run(tmp_path)
    (tmp_path / "records.jsonl").write_text(good)
    (tmp_path / "ledger.json").write_text('{"lines": [{"tier": "top"}]}')
    with pytest.raises(DataError, match=r"ledger\.json is damaged"):
        read_run(tmp_path)


def texts(figure):
    """What texts a figure draws, and their boxes in pixels."""
    from matplotlib.text import Text

    drawn, draw = [], Text.draw
    figure.draw_without_rendering()  # lays it out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", lambda text, *args: (drawn.append(text), draw(text, *args)))
        figure.draw_without_rendering()
    seen = [text for text in drawn if text.get_visible() and text.get_text().strip()]
    return [(text.get_text(), text.get_window_extent()) for text in seen]


def assert_legible(figure):
    """No text over another, none out of the figure, legends outside the axes."""
    boxes = texts(figure)
    assert boxes
    for number, (text, box) in enumerate(boxes):
        assert box.x0 >= -1, text
        assert box.y0 >= -1, text
        assert box.x1 <= figure.bbox.x1 + 1, text
        assert box.y1 <= figure.bbox.y1 + 1, text
        for other, its in boxes[:number]:
            narrow = box.padded(-1)
            assert not narrow.overlaps(its), f"{text!r} over {other!r}"
    for legend in figure.legends:
        for axes in figure.axes:
            assert not legend.get_window_extent().padded(-1).overlaps(axes.get_window_extent())


NAMES = ["TDCD with private labels", "$x$ and _y_ " * 4, "_hidden", *(f"lr={i}" for i in range(9))]


@pytest.mark.parametrize("axis", ["time", "bytes"])
@pytest.mark.parametrize("count", [1, 4, 12])
def test_text_covers_nothing(axis, count):
    runs = {
        name: [
            record(r * (i + 1), 0.9 - 0.8 / (r + i + 1), (0.1, 0.9) if i == 2 else None)
            for r in range(9)
        ]
        for i, name in enumerate(NAMES[:count])
    }
    assert_legible(curves(runs, "accuracy", axis))
    assert_legible(panels(runs, [("accuracy", axis), ("f1", axis), ("train_loss", axis)]))
    assert_legible(close_up(runs, "accuracy"))


def test_bills_are_legible():
    many = ledger()
    many["lines"] += [
        {**many["lines"][0], "kind": f"kind-{i}" * 3, "bytes": 10**i} for i in range(9)
    ]
    assert_legible(by_kind(many))
    assert_legible(by_part({"TDCD": many, "silos alone, scores combined " * 2: ledger()}))
    assert_legible(by_kind({"lines": []}))
    assert_legible(by_part({"TDCD": {"lines": []}}))
    assert by_tier(ledger()) == {"bottom": (120, 40_000), "top": (20, 4_000)}


def test_curves():
    records = [record(r, r / 10, (r / 20, r / 5)) for r in range(4)]
    found = curve(records, "accuracy", "bytes")
    assert found.x == [0, 1200, 2400, 3600]
    assert (found.y[2], found.low[2], found.high[2]) == (0.2, 0.1, 0.4)
    assert found.banded
    assert not curve(records, "train_loss", "round").banded
    with pytest.raises(DataError, match="did you mean 'round'"):
        curves({"a": records}, "accuracy", "rounds")


def test_a_wild_start_does_not_hide_the_rest():
    scores = [-40.0, 0.3, 0.5]
    figure = curves({"a": [record(r, s, metric="r2") for r, s in enumerate(scores)]}, "r2", "round")
    assert figure.axes[0].get_ylim()[0] == -0.5
    assert "from -0.5 up" in figure.axes[0].get_ylabel()


def test_bytes_that_differ_by_far():
    """On a logarithmic scale there is no zero; who sent nothing is named instead."""
    sent = {"much": 1000, "little": 1, "_none": 0}
    runs = {
        name: [{**record(r, r / 4), "bytes": {"bottom": r * n}} for r in range(4)]
        for name, n in sent.items()
    }
    figure = curves(runs, "accuracy", "bytes")
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert [len(line.get_xdata()) for line in axes.get_lines()] == [3, 3, 0]
    assert "sent nothing:  _none" in axes.get_xlabel()
    assert_legible(figure)


def test_line_styles_differ_in_more_than_colour():
    styles = [style.line(i) for i in range(14)]
    assert len({(line.color, str(line.linestyle)) for line in styles}) == 14
    assert len({(line.color, line.marker) for line in styles}) == 14
    assert all(one.linestyle != two.linestyle for one, two in pairwise(styles[:7]))


def test_numbers_for_people():
    shown = {0: "0 bytes", 999: "999 bytes", 1000: "1.0 kB", 3400: "3.4 kB", 999_600: "1.0 MB"}
    assert {n: words.size(n) for n in shown} == shown
    assert words.size(123_456_789) == "123 MB"
    assert words.show("accuracy", 0.9617) == "96.2 %"
    assert words.show("auroc", 0.9617) == "0.962"
    assert words.show("mse", 0.00012345) == "0.000123"
    assert words.spread("accuracy", [-0.002, 0.016]) == "\u22120.2 to 1.6 %"
    assert words.points("accuracy", [0.012]) == "1.2 percentage points"
    assert words.points("r2", [-0.01, 0.02]) == "\u22120.010 to 0.020"
    assert words.spread("accuracy", [0.62, 0.71]) == "62.0\u201371.0 %"
    assert words.best([record(1, 0.5), record(2, 0.7), record(3, 0.6)], "accuracy") == (0.7, 2)
    assert words.best([record(1, 0.5), record(2, 0.7)], "train_loss") == (0.65, 2)


def sweep(folder, rates=(0.1, 0.2), seeds=(0, 1)):
    for rate in rates:
        for seed in seeds:
            config = {
                "algorithm": {"name": "tdcd", "lr": rate},
                "engine": {"seed": seed},
                "output": {"folder": f"{rate}-{seed}"},
            }
            records = [record(r, rate * r + 0.02 * seed) for r in range(4)]
            yield make(folder / f"{rate}-{seed}", parts={"tdcd": records}, config=config)


def test_compare(tmp_path):
    folders = list(sweep(tmp_path))
    path = compare(folders, tmp_path / "out")
    assert path == tmp_path / "out" / "compare.png"
    assert path.read_bytes().startswith(PNG)
    rows = json.loads(path.with_suffix(".json").read_text())
    assert rows == compare_table(folders)
    assert [row["label"] for row in rows] == ["algorithm.lr=0.1", "algorithm.lr=0.2"]
    assert rows[1]["seeds"] == [0, 1]
    assert rows[1]["final"] == pytest.approx(0.61)
    assert rows[1]["final_min"] == pytest.approx(0.6)
    assert rows[1]["final_max"] == pytest.approx(0.62)
    with path.with_suffix(".csv").open() as file:
        assert [row["seeds"] for row in csv.DictReader(file)] == ["0; 1", "0; 1"]
    text = path.with_suffix(".html").read_text()
    assert len(Outline(text).images) == 1
    assert "algorithm.lr=0.2 (mean of 2 seeds)" in text


def test_compare_axis_and_metric(tmp_path):
    folders = list(sweep(tmp_path, seeds=(0,)))
    for axis in ("iteration", "time", "bytes"):
        assert compare(folders, tmp_path / f"{axis}.png", "train_loss", axis).is_file()
    assert compare_table(folders, "f1")[0]["final"] == pytest.approx(0.29)
    with pytest.raises(DataError, match="did you mean 'accuracy'"):
        compare_table(folders, "acuracy")


def test_compare_what_is_not_alike(tmp_path):
    folders = list(sweep(tmp_path, seeds=(0,)))
    with pytest.raises(DataError, match="is given twice"):
        compare_table([*folders, folders[0]])
    with pytest.raises(DataError, match="no run folder is given"):
        compare_table([])
    number = [{**record(1, 0.5), "metrics": {"r2": 0.5}}]
    folders.append(make(tmp_path / "number", parts={"tdcd": number}, goal="number"))
    with pytest.raises(DataError, match="judged by accuracy, r2: choose a metric"):
        compare_table(folders)
    assert [row["final"] for row in compare_table(folders, "r2")] == [None, None, 0.5]
    assert compare(folders, tmp_path / "r2.png", "r2").is_file()
    with pytest.raises(DataError, match="13 curves are too many"):
        compare(sweep_of(tmp_path / "many", 13), tmp_path / "many.png")


def sweep_of(folder, count):
    return list(sweep(folder, rates=[0.01 * (i + 1) for i in range(count)], seeds=(0,)))


def test_compare_runs_of_one_setting_and_seed(tmp_path):
    folders = [make(tmp_path / name) for name in ("first", "second")]
    labels = [row["label"] for row in compare_table(folders)]
    assert len(set(labels)) == 2
    assert all(re.search(r"\(.*(first|second)\)$", label) for label in labels)


def test_matplotlib_is_not_imported_before_it_is_needed():
    code = (
        "import sys, fedloom.report.page, fedloom.report.compare;"
        "sys.exit('matplotlib' in sys.modules or 'jinja2' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_page_fits_any_width(tmp_path):
    """What can be held of that without a browser; test_pages.py measures it in one."""
    folders = list(sweep(tmp_path / "sweep", seeds=(0,)))
    pages = [write_report(make(tmp_path / "run")), compare(folders, tmp_path / "c.png")]
    for path in pages:
        text = path.with_suffix(".html").read_text(encoding="utf-8")
        page = Outline(text)
        assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
        assert len(page.narrow) == len(page.images) > 0
        for wide, narrow in zip(page.images, page.narrow, strict=True):
            assert narrow["media"] == "screen and (max-width: 44rem)"
            assert base64.b64decode(narrow["srcset"].split(",")[1]).startswith(PNG)
            assert int(narrow["width"]) <= 480 <= int(wide["width"]) <= 1440
        (style_text,) = re.findall("<style>(.*?)</style>", text, re.DOTALL)
        assert "overflow-x" not in style_text, "cut off, and nobody sees that there is more"
        for rule, value in re.findall(r"((?:min-)?width): *([^;}]+)", style_text):
            assert rule == "width" or value in ("8rem", "0")
            assert value in ("0", "8rem", "60rem", "none", "100%", "50%") or value[:5] in (
                "44rem",
                "56rem",
            )
        cells = re.findall("<td[^>]*>", text)
        assert cells
        assert all("data-name=" in cell for cell in cells)


def lone(folder, **more):
    """A run in which one silo has labels, with the same baseline twice."""
    parts = {
        "tdcd": [record(r, 0.1 + 0.08 * r) for r in range(0, 11, 2)],
        "alone": [{**record(r, 0.05 * r), "by_silo": {"bank": {"accuracy": 0.05 * r}}}
                  for r in range(0, 11, 2)],
        "no-exchange": [record(r, 0.05 * r) for r in range(0, 11, 2)],
    }  # fmt: skip
    make(folder, parts=parts, **more)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["data"]["silos"]["insurer"] |= {"labels": False, "classes": {}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_one_silo_that_can_train_alone_is_one_row(tmp_path):
    text, page = report(lone(tmp_path))
    assert "silo bank alone 50.0 %. The exchange between silos added 40.0 percentage" in text
    assert "silos alone" not in text
    assert text.count("<th>silo bank alone</th>") == 2  # the results, and all metrics
    assert "Where silos train alone" not in text
    assert "The second half of the rounds, enlarged.<" in text.replace("\n", "")
    assert "(mean)" not in text
    names = [image["alt"] for image in page.images]
    assert "for TDCD, silo bank alone" in names[0]


def test_a_caption_says_what_is_left_out(tmp_path):
    text, _ = report(make(tmp_path / "banded"))
    assert "enlarged, without the curve with a band (silos alone)." in text
    assert "Loss on the training rows; where silos train alone, the mean over silos." in text
    parts = {"tdcd": [record(r, 0.08 * r) for r in range(6)]}
    text, _ = report(make(tmp_path / "plain", parts=parts))
    assert "The second half of the rounds, enlarged." in text
    assert "Loss on the training rows." in text
    assert "alone" not in text


def test_a_silo_without_labels_is_not_coloured_by_class():
    silos = {
        silo: {
            "shape": [2],
            "columns": [],
            "labels": silo == "bank",
            "clients": {str(k): [30, 5] for k in range(count)},
            "classes": {str(k): [10, 20] for k in range(count)},
        }
        for silo, count in {"insurer": 2, "bank": 3, "shop": 40}.items()
    }
    rows = {"train": 90, "test": 15}
    summary = {"name": "x", "classes": ["a", "b"], "rows": rows, "silos": silos}
    for narrow in (False, True):
        figure = holdings(summary, None, narrow)
        insurer, bank, shop = figure.axes[:3]
        assert colours_of(insurer) == colours_of(shop) == {UNKNOWN.lower(), TEST.lower()}
        assert colours_of(bank) == {OKABE_ITO[0].lower(), OKABE_ITO[1].lower(), TEST.lower()}
        (key,) = figure.legends
        labels = [text.get_text() for text in key.get_texts()]
        assert labels == ["a", "b", "without labels", "test rows"]
        assert_legible(figure)


def colours_of(axes):
    from matplotlib.colors import to_hex

    return {to_hex(patch.get_facecolor()) for patch in axes.patches}


def test_one_record_makes_no_curve(tmp_path):
    text, page = report(make(tmp_path, parts={"tdcd": [record(0, 0.1)]}, finished=None))
    assert "After 0 rounds TDCD reaches 10.0 % test accuracy." in text
    assert not any("against" in image["alt"] or "loss" in image["alt"] for image in page.images)


def test_a_run_that_failed_says_why(tmp_path):
    why = "round 3: NaN or infinity in update from client bank/x"
    text, _ = report(make(tmp_path, finished=None, failed=why))
    assert f"Training ended with an error: {why}. What was recorded until then is shown." in text
    assert "not finished" not in text


def test_large_and_negative_numbers():
    assert words.show("r2", -2764.996) == "\u22122,765"
    assert words.show("train_loss", 1590.4) == "1,590"
    assert words.spread("r2", [-4984.9, -545.1]) == "\u22124,985 to \u2212545"
    assert words.when("2026-11-18T20:29:24+00:00") == "2026-11-18 20:29 UTC"
    assert words.when("long ago") == "long ago"


def test_rounds_are_whole_numbers():
    for last in (3, 20, 40, 65):
        figure = curves({"a": [record(r, r / 99) for r in range(last + 1)]}, "accuracy", "round")
        ticks = figure.axes[0].xaxis.get_major_locator()()
        assert all(float(tick).is_integer() for tick in ticks)


@pytest.mark.parametrize("count", [1, 4, 12])
def test_narrow_figures_are_legible(count):
    runs = {
        name: [record(r * (i + 1), 0.9 - 0.8 / (r + i + 1)) for r in range(9)]
        for i, name in enumerate(NAMES[:count])
    }
    assert_legible(panels(runs, [("accuracy", "time"), ("f1", "bytes")], narrow=True))
    assert_legible(close_up(runs, "accuracy", narrow=True))
    found = {name: curve(records, "accuracy", "round") for name, records in runs.items()}
    assert_legible(drawn(found, "accuracy", "round", narrow=True))
    for times in (1, 60, 99_999):
        assert_legible(by_kind(ledger(times), narrow=True))
    assert_legible(by_part({name: ledger() for name in runs}, narrow=True))
    assert_legible(histogram([9, 5, 2, 1], "age of an embedding, in turns of the master", True))
