"""The player carries the very pixels, scores and columns of an acquisition."""

import base64
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kscout.apps.player import acquisition_player, load_acquisition, save_acquisition
from kscout.errors import DataError
from kscout.figures.png import gray_uri, heat_uri
from synthetic_results import make_acquisition


def pixels(uri: str) -> np.ndarray:
    assert uri.startswith(("data:image/png;base64,", "data:image/webp;base64,"))
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))))


def data_of(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" class="data">(.*?)</script>', html)
    assert found is not None
    return json.loads(found.group(1))


def pictures_of(html: str) -> list[tuple[str, str]]:
    """The reconstructions and error maps of each policy, one tall picture each."""
    shots, errors = (
        re.findall(f'<img class="{kind}" [^>]*src="([^"]+)"', html) for kind in ("shot", "error")
    )
    return list(zip(shots[1:], errors, strict=True))


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
    data = data_of(html)
    assert data["start"] == list(acquisition.start_columns)
    assert data["steps"] == list(range(10))
    for given, shown, (image, error) in zip(
        acquisition.policies, data["policies"], pictures_of(html), strict=True
    ):
        assert shown["columns"] == list(given.columns)
        assert [f"{x:.4f}" for x in shown["ssim"]] == [f"{x:.4f}" for x in given.ssim]
        levels = np.clip(given.images / np.quantile(acquisition.target, 0.995), 0, 1) * 255
        tall = pixels(image).reshape(given.images.shape)
        assert np.abs(tall - levels).max() <= 0.5
        assert pixels(error).shape == pixels(image).shape
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
        # One of 256 levels up to the brightest pixel of the target.
        assert one.images == pytest.approx(
            np.clip(other.images, 0, acquisition.target.max()),
            abs=0.51 * acquisition.target.max() / 255,
        )


def test_every_policy_can_be_chosen_and_a_few_are_shown_at_first() -> None:
    names = ("random", "fixed", "greedy", "center-out", "oracle")
    acquisition = replace(make_acquisition(names), shown=("greedy", "fixed"))
    html = acquisition_player(acquisition)
    boxes = re.findall(r'<input type="checkbox"( checked)?>([^<]+)<', html)
    assert [name for _, name in boxes] == list(names)
    assert {name for mark, name in boxes if mark} == {"greedy", "fixed"}
    cards = re.findall(
        r'<figure class="card" data-kind="[^"]+"( hidden)?><figcaption><b>(.*?)<', html
    )
    assert {name for off, name in cards if not off} == {"greedy", "fixed"}
    assert 'value="0"' in html and "step 0 of 9" in html, "it opens at the start"


def test_a_steered_player_shows_k_space_scores_and_a_speed_and_a_report_none_of_them() -> None:
    recorded = make_acquisition(("greedy",))
    (policy,) = recorded.policies
    ratings = np.arange(10 * 48, dtype=np.uint8).reshape(10, 48)
    kspace = np.linspace(0, 1, recorded.target.size).reshape(recorded.target.shape)
    you = replace(policy, name="you", columns=policy.columns[:3])
    live = replace(
        recorded, kspace=kspace, policies=(replace(policy, ratings=ratings), you), shown=()
    )
    html = acquisition_player(live, n_bytes=None, is_steered=True)
    greedy, mine = data_of(html)["policies"]
    assert np.frombuffer(base64.b64decode(greedy["ratings"]), np.uint8).tolist() == [
        *ratings.flatten()
    ]
    assert "ratings" not in mine and html.count('<canvas class="kspace"') == 2
    assert html.count('class="speed"') == 1 and html.count('<canvas class="ratings"') == 1
    # Whoever steers has not stopped: the line ends with the last column.
    lines = re.findall(r'<polyline points="([^"]+)"', html)
    assert [len(line.split()) for line in lines] == [10, 4]
    plain = acquisition_player(recorded)
    assert not any(word in plain for word in ("kspace", "ratings", "speed", "steered", "pointed"))


def test_one_kept_step_stands_without_a_slider() -> None:
    html = acquisition_player(make_acquisition().thinned(1))
    assert 'type="range"' not in html and "polyline" not in html
    data = data_of(html)
    assert data["steps"] == [9] and [len(one["columns"]) for one in data["policies"]] == [9] * 3


def test_thinning_keeps_start_and_end() -> None:
    acquisition = make_acquisition()
    few = acquisition.thinned(4)
    assert few.steps == (0, 3, 6, 9)
    for one, other in zip(few.policies, acquisition.policies, strict=True):
        assert (one.images == other.images[[0, 3, 6, 9]]).all() and one.columns == other.columns
        assert (one.ssim == other.ssim[[0, 3, 6, 9]]).all()
    assert acquisition.thinned(100).steps == acquisition.steps


@pytest.mark.parametrize("n_bytes", [60_000, 30_000])
def test_images_stay_within_the_bytes_that_a_page_has(n_bytes: int) -> None:
    acquisition = make_acquisition()
    whole, html = acquisition_player(acquisition), acquisition_player(acquisition, n_bytes=n_bytes)
    size = sum(len(uri) for pair in pictures_of(html) for uri in pair)
    assert sum(len(uri) for pair in pictures_of(whole) for uri in pair) > 60_000
    # Judged by the first policy's images, of which the others' differ a little.
    assert size < 1.3 * n_bytes
    steps = data_of(html)["steps"]
    assert steps[0] == 0 and steps[-1] == 9 and len(steps) >= 5
    assert data_of(html)["nCols"] == 48


def test_a_damaged_file_and_columns_without_images_are_refused(tmp_path: Path) -> None:
    path, acquisition = tmp_path / "acquisition.npz", make_acquisition(("random",))
    save_acquisition(acquisition, path)
    whole = path.read_bytes()
    for damaged in (b"", b"PK nothing", whole[:-9], whole[:700] + b"\0" * 50 + whole[750:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="not a recorded acquisition"):
            load_acquisition(path)
    policy = acquisition.policies[0]
    long = replace(policy, columns=(*policy.columns, 0))
    with pytest.raises(DataError, match="expected 10 scores and at most 9 columns"):
        replace(acquisition, policies=(long,))
    short = replace(policy, images=policy.images[:8], ssim=policy.ssim[:8])
    with pytest.raises(DataError, match=r"have \[8, 10\] images each"):
        replace(acquisition, policies=(policy, short))
    with pytest.raises(DataError, match="images of shape"):
        replace(acquisition, target=acquisition.target[:-1])
