"""Build the source distribution and the wheel, and run kscout from the wheel alone.

    python lab/release.py --work release

The wheel is built from the unpacked source distribution, so both are complete. It is installed
into an environment that holds nothing else, and `kscout demo --quick` runs there, away from the
repository. Prints one JSON object; takes minutes, and a package index for what kscout depends on.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LARGEST_BYTES = 36_000_000


def environment(folder: Path) -> Path:
    """Make an empty virtual environment; return its interpreter."""
    venv.create(folder, with_pip=True, clear=True)
    return folder / "bin" / "python"


def timed(*command: str | Path, cwd: Path) -> float:
    """Run a command and return its seconds; what it prints goes to the error stream."""
    started = time.monotonic()
    subprocess.run([str(word) for word in command], cwd=cwd, check=True, stdout=sys.stderr)
    return round(time.monotonic() - started, 1)


def build(work: Path) -> tuple[Path, Path]:
    """Build the source distribution of the repository, and the wheel from that."""
    python, made = environment(work / "builder"), work / "dist"
    timed(python, "-m", "pip", "install", "--quiet", "hatchling", cwd=work)
    timed(python, "-m", "hatchling", "build", "-t", "sdist", "-d", made, cwd=ROOT)
    (source,) = made.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(work / "source", filter="data")
    (unpacked,) = (work / "source").iterdir()
    timed(python, "-m", "hatchling", "build", "-t", "wheel", "-d", made, cwd=unpacked)
    (wheel,) = made.glob("*.whl")
    return source, wheel


def missing_files(wheel: Path) -> list[str]:
    """Return files of the package that are tracked, and not in the wheel."""
    listed = subprocess.run(
        ["git", "ls-files", "src/kscout"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    wanted = {name.removeprefix("src/") for name in listed.stdout.splitlines()}
    return sorted(wanted - set(zipfile.ZipFile(wheel).namelist()))


def try_wheel(wheel: Path, work: Path) -> dict[str, Any]:
    """Install a wheel into an empty environment and run the demo there."""
    python, away = environment(work / "empty"), work / "away"
    away.mkdir()
    pins = ROOT / "constraints.txt"
    install = timed(python, "-m", "pip", "install", "--quiet", "-c", pins, wheel, cwd=away)
    kscout = python.with_name("kscout")
    demo = timed(kscout, "demo", "--quick", "--out", "demo", cwd=away)
    told = subprocess.run([kscout, "--version"], cwd=away, check=True, capture_output=True)
    return {
        "version": told.stdout.decode().split()[-1],
        "install_s": install,
        "demo_quick_s": demo,
        "page_bytes": (away / "demo" / "index.html").stat().st_size,
    }


def main() -> None:
    """Build, install, run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("release"), help="a new folder")
    work = parser.parse_args().work.resolve()
    work.mkdir(parents=True)
    source, wheel = build(work)
    if lost := missing_files(wheel):
        sys.exit(f"{wheel.name} lacks {', '.join(lost)}")
    if large := [path.name for path in (source, wheel) if path.stat().st_size > LARGEST_BYTES]:
        sys.exit(f"{', '.join(large)}: larger than {LARGEST_BYTES / 1e6:.0f} MB")
    found = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "sdist_bytes": source.stat().st_size,
        "wheel_bytes": wheel.stat().st_size,
        **try_wheel(wheel, work),
    }
    shutil.rmtree(work / "empty")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
