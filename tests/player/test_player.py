"""The player carries the very pixels, scores and columns of an acquisition."""

import base64
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kscout.errors import DataError
from kscout.figures.png import gray_uri, heat_uri
from kscout.player import acquisition_player, load_acquisition, save_acquisition
from synthetic_results import make_acquisition


def pixels(uri: str) -> np.ndarray:
    assert uri.startswith("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))))


def test_grays_survive_encoding_and_clip_at_the_limit() -> None:
    image = np.array([[0.0, 0.5, 1.0], [2.0, -1.0, 0.25]])
    assert pixels(gray_uri(image, 1.0)).tolist() == [[0, 128, 255], [255, 0, 64]]


def test_error_maps_get_brighter_with_the_error() -> None:
    encoded = pixels(heat_uri(np.array([[0.0, 0.2, 0.6, 1.0]]), 1.0))
    assert encoded[0].tolist() == sorted(encoded[0].tolist()) and encoded[0, 0] == 0
    # A blank error map has no scale, and is black.
    assert not pixels(heat_uri(np.zeros((3, 5)), 0.0)).any()


def test_the_page_holds_every_step_of_every_policy() -> None:
    acquisition = make_acquisition()
    html = acquisition_player(acquisition, name="p")
    found = re.search(r'<script type="application/json" class="data">(.*?)</script>', html)
    assert found is not None
    data = json.loads(found.group(1))
    assert data["start"] == list(acquisition.start_columns)
    for given, shown in zip(acquisition.policies, data["policies"], strict=True):
        assert shown["columns"] == list(given.columns)
        assert shown["ssim"] == pytest.approx(given.ssim, abs=1e-5)
        assert len(shown["images"]) == len(shown["errors"]) == len(given.images)
        levels = np.clip(given.images[2] / np.quantile(acquisition.target, 0.995), 0, 1) * 255
        assert np.abs(pixels(shown["images"][2]) - levels).max() <= 0.5
    assert 'data-kind="oracle"' in html


def test_names_cannot_break_out_of_the_page() -> None:
    acquisition = make_acquisition(("random",))
    evil = replace(acquisition.policies[0], name="</script><b>x")
    html = acquisition_player(replace(acquisition, policies=(evil,)))
    assert "<b>x" not in html and html.count("</script>") == 1


def test_a_saved_acquisition_reads_back(tmp_path: Path) -> None:
    acquisition = make_acquisition()
    save_acquisition(acquisition, tmp_path / "acquisition.npz")
    back = load_acquisition(tmp_path / "acquisition.npz")
    assert (back.title, back.start_columns) == (acquisition.title, acquisition.start_columns)
    for one, other in zip(back.policies, acquisition.policies, strict=True):
        assert (one.name, one.columns, one.is_oracle) == (
            other.name,
            other.columns,
            other.is_oracle,
        )
        assert one.images == pytest.approx(other.images, abs=1e-6)


def test_a_damaged_file_and_missing_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "acquisition.npz").write_bytes(b"PK nothing")
    with pytest.raises(DataError, match="not a recorded acquisition"):
        load_acquisition(tmp_path / "acquisition.npz")
    acquisition = make_acquisition(("random",))
    short = replace(acquisition.policies[0], columns=acquisition.policies[0].columns[:-1])
    with pytest.raises(DataError, match="10 images and 8 columns"):
        replace(acquisition, policies=(short,))


def test_recorded_acquisitions_are_read_and_shown_without_torch() -> None:
    """A page is made where no model runs, so what it needs must not import one."""
    code = "import kscout.player, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
