"""The core works without the packages of the extra `network`, and says what they are needed for."""

import subprocess
import sys

BLOCKED = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("grpc", "cryptography", "msgspec"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from fedloom.cli.main import main

assert main(["list", "losses"]) == 0
sys.exit(main(["keys", "ca", "bank", "--at", "nowhere"]))
"""


def test_without_the_extra(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert ended.returncode == 2, ended.stderr
    assert "pip install 'fedloom[network]'" in ended.stderr
    assert not list(tmp_path.iterdir())
