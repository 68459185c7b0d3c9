"""The page "From simulation to three organisations", run as the script that it is."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/three-organisations.md"
PARTIES = ["bank/hub", "insurer/hub", "clinic/hub", "bank/north", "insurer/all", "clinic/west"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_page_runs(tmp_path):
    blocks = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 9
    python = f'"{sys.executable}"'
    own = f'fedloom() {{ {python} -m fedloom "$@"; }}\npython() {{ {python} "$@"; }}\n'
    script = tmp_path / "page.sh"
    script.write_text("set -euo pipefail\n" + own + "\n".join(blocks))
    ended = subprocess.run(
        ["bash", str(script)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1400,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    for party in PARTIES:
        done = json.loads((tmp_path / f"{party}-out" / "done.json").read_text())
        assert done["rounds"] == 20
    assert "clinic: done, round 20 of 20" in ended.stdout
    lines = (tmp_path / "clinic/scores.csv").read_text().splitlines()
    assert lines[0] == "person,score,contributed"
    assert [line.split(",")[2] for line in lines[1:]] == [
        *["bank+insurer+clinic"] * 4,
        "insurer+clinic",
    ]
    logs = "".join(path.read_text() for path in tmp_path.glob("*/*-out/*.jsonl"))
    assert "p0012" not in logs
    assert "rows" in logs
