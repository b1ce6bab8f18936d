"""Worker processes that generate volumes end with the process that started them."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from campaign.small_campaign import wait_for

pytestmark = pytest.mark.slow


def children(process: int) -> list[Path]:
    listed = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [Path(f"/proc/{word}") for word in listed.split()]


def is_running(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kscout", "data", "make", "knee", "--volumes", "500,1,1"]
    options = ["--slices", "20", "--workers", "2", "--out", str(tmp_path / "store")]
    with subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL) as parent:
        wait_for(lambda: parent.poll() is not None or list(tmp_path.rglob("*.npy")))
        workers = children(parent.pid)
        parent.send_signal(signal.SIGKILL)
    assert len(workers) >= 2
    wait_for(lambda: not any(map(is_running, workers)))
