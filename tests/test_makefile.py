"""What `make setup` says: little while it works, the reason where it does not."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FAULT = "ERROR: No matching distribution found for torch"
INTERPRETER = """#!/bin/sh
[ "$2" = venv ] && mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && exit 0
[ -e ../fails ] || exit 0
echo "{fault}" >&2
exit 1
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the Makefile and an interpreter that installs nothing."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    stand_in = tmp_path / "python"
    stand_in.write_text(INTERPRETER.format(fault=FAULT))
    stand_in.chmod(0o755)
    return folder


def set_up(checkout: Path) -> subprocess.CompletedProcess[str]:
    # Tests run under make, too, which tells those below it how to speak.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", "setup", "PYTHON=../python"],
        cwd=checkout,
        env=plain,
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_installation_that_fails_tells_why_and_is_tried_again(checkout: Path) -> None:
    (checkout.parent / "fails").touch()
    for _ in range(2):
        found = set_up(checkout)
        assert found.returncode != 0
        assert FAULT in found.stderr
        assert "pip install" not in found.stdout
        assert "the packages were not installed" in found.stdout
