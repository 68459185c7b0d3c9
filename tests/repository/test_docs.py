"""The pages are true: code runs, run files can be read, links lead somewhere."""

import argparse
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

import fedloom
from fedloom import extend, testing
from fedloom.cli.main import CODES, main, parser
from fedloom.config.catalogue import REGISTRIES
from fedloom.config.runfile import RunFile
from fedloom.core.registry import algorithms
from fedloom.testing import CHECKS
from fedloom.testing.samples import examples_of

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.name for path in ROOT.glob("docs/*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SAVED = re.compile(r"# (\S+\.toml)\n")  # a run file that says its name


def blocks(page, language="python"):
    """The page's code in a language, block by block."""
    return [text for kind, text in BLOCK.findall((ROOT / page).read_text()) if kind == language]


def without_numbers(text):
    """Printed text without its digits, which differ a little between machines."""
    return re.sub(r"\d+", "#", text).split()


def learned(names, printed):
    loss, accuracy = re.findall(r"[0-9.]+", printed)
    assert float(loss) < 0.5
    assert float(accuracy) > 0.8


def learned_from_views(names, printed):
    assert "local_accuracy" in printed
    assert names["run"].records[-1].metrics["accuracy"] > 0.75
    assert names["scores"].shape == (449, 10)


def learned_late(names, printed):
    run = names["run"]
    assert run.loss() < 2.2
    assert run.algorithm.notes(run.fed, run.state)["delay_mean"] > 0


def stopped_early(names, printed):
    assert "the privacy budget ends the run" in printed
    assert names["run"].records[-1].privacy["epsilon"] <= 20 + 1e-6


EXAMPLES = {  # what the example of an algorithm's page must have come to
    **dict.fromkeys(["tdcd.md", "fedbcd.md", "splitnn.md", "fedavg.md"], learned),
    **dict.fromkeys(["vafl.md", "splitnn-async.md"], learned_late),
    "hyfem.md": learned_from_views,
    "privacy.md": stopped_early,
}


def runs(page):
    """Whether there is something on a page that runs here."""
    found = BLOCK.findall((ROOT / "docs" / page).read_text())
    return any(kind == "python" or (kind == "toml" and SAVED.match(text)) for kind, text in found)


@pytest.fixture
def _forgotten():
    """What a page registers is forgotten after it."""
    with ExitStack() as stack:
        for registry in REGISTRIES.values():
            stack.enter_context(registry.scratch())
        yield


@pytest.mark.usefixtures("_forgotten")
@pytest.mark.filterwarnings("ignore::fedloom.core.errors.HaltedWarning")
@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)])
def test_a_page_works_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    """Python runs; what it printed is what the `text` block after it shows; a run file that says
    its name in its first line is saved, and commands about it are run."""
    monkeypatch.chdir(tmp_path)
    names, made, printed, judged = {"__name__": "docs"}, set(), None, 0
    for kind, text in BLOCK.findall((ROOT / "docs" / page).read_text()):
        if kind == "python":
            capsys.readouterr()
            exec(compile(text, page, "exec"), names)
            printed = capsys.readouterr().out
            if page in EXAMPLES:
                assert len(text.splitlines()) <= 12
                EXAMPLES[page](names, printed)
                judged += 1
            continue
        if kind == "text" and printed is not None:
            assert without_numbers(printed) == without_numbers(text)
        elif kind == "toml" and (name := SAVED.match(text)):
            Path(name[1]).write_text(text)
            made.add(name[1])
        elif kind == "sh":
            for line in text.replace("\\\n", " ").splitlines():
                _, *words = shlex.split(line, comments=True)
                if made.intersection(words):
                    assert main(words) == 0, line
        printed = None
    assert bool(judged) == (page in EXAMPLES)


def test_examples_are_of_pages_that_are_there():
    """And some pages show what their code prints, or have commands for their run files."""
    assert set(EXAMPLES) <= set(PAGES)
    found = {page: BLOCK.findall((ROOT / "docs" / page).read_text()) for page in PAGES}
    kinds = {page: [kind for kind, _ in blocks] for page, blocks in found.items()}
    shown = [page for page, each in kinds.items() if ("python", "text") in pairwise(each)]
    saved = [page for page, blocks in found.items() if any(SAVED.match(text) for _, text in blocks)]
    assert shown
    assert saved


RUN_FILES = [page for page in PAGES if "```toml" in (ROOT / "docs" / page).read_text()]


@pytest.mark.parametrize("page", RUN_FILES)
def test_run_files_of_a_page(page):
    found = blocks(f"docs/{page}", "toml")
    assert found
    registers = ".register(" in (ROOT / "docs" / page).read_text()
    for text in found:
        if registers and SAVED.match(text):  # which is run where the page has registered its own
            continue
        whole = text if "[data" in text else f'data = {{name = "synthetic"}}\n{text}'
        assert RunFile.parse(whole).of_rows(1000).rounds > 0


def test_the_readmes_example(tmp_path, monkeypatch, capsys):
    """The same from Python and as a run file, on tables as the page names them."""
    monkeypatch.chdir(tmp_path)
    people = [(i, 20 + i % 40, i % 7, "yes" if i % 40 > 5 * (i % 7) else "no") for i in range(300)]
    bank = [f"{i},{income},{label}" for i, income, _, label in people]
    insurer = [f"{i},{claims},{label}" for i, _, claims, label in people]
    for name, head, rows in [
        ("bank-north", "person,income,defaulted", bank[:200]),
        ("bank-south", "person,income,defaulted", bank[200:]),
        ("insurer", "person,claims,defaulted", insurer),
        ("new-bank", "person,income", ["900,55", "901,21"]),
        ("new-insurer", "person,claims", ["900,0", "901,6"]),
    ]:
        Path(f"{name}.csv").write_text("\n".join([head, *rows, ""]))
    (code,), (file,) = blocks("README.md"), blocks("README.md", "toml")
    found = {}
    exec(compile(code, "README.md", "exec"), found)
    assert "bytes sent" in capsys.readouterr().out
    assert found["run"].evaluate()["auroc"] > 0.9
    assert found["scores"].shape == (2, 1)
    assert found["scores"][0] > 0 > found["scores"][1]
    assert len(code.splitlines()) <= 25
    Path("run.toml").write_text(file)
    assert main(["check", "run.toml"]) == 0
    assert len(file.splitlines()) <= 30


@pytest.mark.usefixtures("_forgotten")
def test_the_example_algorithm_passes_the_battery():
    algorithm, battery = blocks("docs/writing-an-algorithm.md")
    found = {"__name__": "docs"}
    exec(compile(algorithm, "writing-an-algorithm.md", "exec"), found)
    assert "stubborn" in algorithms
    for check in CHECKS.values():
        check(examples_of(found["Stubborn"])[0])
    exec(compile(battery, "writing-an-algorithm.md", "exec"), found)
    assert callable(found["test_battery"])


def test_first_steps_are_short():
    (file,) = blocks("docs/quickstart.md", "toml")
    assert len(file.splitlines()) <= 30
    assert len(blocks("docs/python.md")[1].splitlines()) <= 25


def test_the_command_lines_page_is_complete():
    page = (ROOT / "docs/command-line.md").read_text()
    (verbs,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    for verb, one in verbs.choices.items():
        assert f"\n## {verb}\n" in page
        for option in (word for action in one._actions for word in action.option_strings):
            assert option == "-h" or option in page, f"{verb} {option}"
    for code in {0, 1, *(code for code, _ in CODES.values())}:
        assert f"\n| {code} | " in page


def test_the_front_door_is_described_name_by_name():
    page = (ROOT / "docs/python.md").read_text()
    table = "\n".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| "))
    for name in fedloom.__all__:
        assert re.search(rf"`{name}\b", table), name


def test_every_algorithm_has_its_place_and_its_page():
    """A line in "Which one is for me?", and a page with all that a page needs."""
    overview = (ROOT / "docs/algorithms.md").read_text()
    for name in algorithms:
        (page,) = re.findall(rf"\| \[`{name}`\]\((\S+\.md)\) \|", overview)
        text = (ROOT / "docs" / page).read_text()
        assert f"`{name}`" in text, (name, page)
        for part in (
            "What (it|they) solve",
            "When to choose",
            "(--|<-)",  # the round as a diagram
            "(Options|Settings|\\| setting)",
            "```python",
            "(relatives|degenerates|special cases)",
            "Who learns what",
        ):
            assert re.search(part, text), (page, part)


INCLUDED = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
NAMED = re.compile(r"`([\w./-]+\.py)`")
OWN = [page for page in sorted(ROOT.glob("docs/**/*.md")) if "--8<--" not in page.read_text()]


@pytest.mark.parametrize("page", [*INCLUDED, *(str(page.relative_to(ROOT)) for page in OWN)])
def test_a_page_opens_with_what_its_reader_can_do(page):
    """In one sentence, under the title."""
    assert re.match(r"# .+\n\nAfter this page you (can|know)\s", (ROOT / page).read_text())


def test_pages_name_files_that_there_are():
    """`engines/party/moves.py`, or the end of such a path."""
    folders = ("src", "tests", "benchmarks", "examples", "tools", "docs")
    there = [str(path) for name in folders for path in (ROOT / name).rglob("*.py")]
    pages = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *OWN]
    named = {(page, path) for page in pages for path in NAMED.findall(page.read_text())}
    assert len(named) > 20
    assert [at for at in named if not any(path.endswith(f"/{at[1]}") for path in there)] == []


def test_comments_name_files_that_there_are():
    """As pages do; a benchmark of others is not ours."""
    code = sorted((ROOT / "src").rglob("*.py"))
    named = {
        (path.name, file)
        for path in code
        for file in re.findall(r"(?<![\w/.-])(?:[\w-]+/)*[\w-]+\.py\b", path.read_text())
        if not file.startswith("mimic3models/")
    }
    there = [
        str(path) for name in ("src", "tests", "benchmarks") for path in (ROOT / name).rglob("*.py")
    ]
    assert len(named) > 50
    assert [at for at in named if not any(path.endswith(f"/{at[1]}") for path in there)] == []


@pytest.mark.parametrize(
    "page", ["README.md", "ARCHITECTURE.md", *sorted(map(str, ROOT.glob("docs/*.md")))]
)
def test_links_lead_somewhere(page):
    page = ROOT / page
    targets = re.findall(r"\]\(([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` does it."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_opens_without_a_server_or_a_network(site):
    """Nothing is fetched from elsewhere, and the search index is a script, not a request."""
    pages = sorted(site.rglob("*.html"))
    assert site / "quickstart.html" in pages
    assert (site / "search/search_index.js").is_file()
    for page in pages:
        text = page.read_text()
        fetched = re.findall(r'<(?:script|link|img)\b[^>]*\b(?:src|href)="?([^" >]+)', text)
        assert fetched, page
        assert not [at for at in fetched if re.match(r"(https?:)?//", at)], page
        assert "assets/iframe-worker.js" in text, page


def test_the_imports_are_drawn_in_the_site(site):
    text = (site / "internals/architecture.html").read_text()
    assert '<svg class="drawing"' in text
    assert "flowchart" not in text
    assert ">deployment</text>" in text


@pytest.mark.parametrize("front", [fedloom, fedloom.algorithms, extend, testing])
def test_the_reference_has_every_public_name(front, site):
    page = site / "reference" / f"{front.__name__.rpartition('.')[2]}.html"
    text = page.read_text()
    others = {name for name in fedloom.algorithms.__all__ if front is fedloom}  # a page of theirs
    contract = set(extend.__all__) if front is fedloom.algorithms else set()
    for name in set(front.__all__) - others - contract - {"errors", "tree"}:
        assert re.search(rf'id="fedloom[\w.]*\.{name}"', text), name
    assert 'id="fedloom.core.errors.FedLoomError"' in text or front is not fedloom
    assert 'id="fedloom.core.tree.map_tensors"' in text or front is not extend
