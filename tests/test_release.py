"""A release says one version everywhere, names the license of every datum, and stays small."""

import os
import re
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

import kscout

ROOT = Path(__file__).parents[1]
DATA = {".npz", ".npy", ".png", ".safetensors", ".xz", ".pt", ".h5", ".nii", ".gz", ".dcm", ".html"}
MEGABYTE = 1_000_000


def licenses() -> str:
    return (ROOT / "docs" / "developers" / "licenses.md").read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (newest, date), *_ = re.findall(r"^## (\d\S+) \((.+)\)$", changes, flags=re.MULTILINE)
    assert project["version"] == citation["version"] == newest == kscout.__version__
    assert citation["date-released"] == date


def test_every_datum_of_the_repository_has_a_license() -> None:
    rows = [line for line in licenses().splitlines() if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    for folder in ("src", "docs", "tests", "lab", "examples"):
        for path in (ROOT / folder).rglob("*"):
            place = path.relative_to(ROOT).as_posix()
            if path.suffix in DATA and "__pycache__" not in place and "templates" not in place:
                found = [n for n in named if fnmatch(place, n) or place.startswith(f"{n}/")]
                assert found, f"docs/developers/licenses.md does not name {place}"


def test_every_head_that_is_fetched_has_its_license() -> None:
    text = (ROOT / "src/kscout/data/makers/heads.toml").read_text(encoding="utf-8")
    for head in tomllib.loads(text)["heads"]:
        name = head["file"].partition(".")[0]
        assert f"| `{name}` | {head['source']} | {head['license']} |" in licenses()


def test_the_repository_stays_small() -> None:
    """Beyond this, weights become a package of their own."""
    zoo = sum(path.stat().st_size for path in (ROOT / "src/kscout/zoo").glob("*.safetensors*"))
    assert zoo < 35 * MEGABYTE
    if not (ROOT / ".git").exists():
        pytest.skip("the size of tracked files is told by git")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert sum(path.stat().st_size for path in files if path.is_file()) < 55 * MEGABYTE


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
