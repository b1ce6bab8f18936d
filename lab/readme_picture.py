"""Draw the README's picture, light and dark: one held-out knee, acquired in four ways.

Usage: python lab/readme_picture.py docs/images/acquisition.png

The dark picture is acquisition-dark.png. Without a path, the ranks of this knee among 24
by the gain over the fixed order are printed.
"""

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from kscout import policies, reconstruction
from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import action_uniforms, rollout
from kscout.acquisition.plan import Plan
from kscout.core import Policy
from kscout.data.makers.knee import draw_knee_volume
from kscout.data.slices import SliceSet
from kscout.figures.pictures import Shown, draw_reconstructions

N_INITIAL, HORIZON, SIZE = 16, 16, 128
VOLUMES, SHOWN = range(2, 26), 24
"""Volumes that are ranked, and the one in the picture."""
WINDOW = (slice(28, 104), slice(26, 102))
"""Rows and columns that are shown: the joint."""
DARK_INK, DARK_PAPER = "#e6edf3", "#161b22"


def acquired(number: int = SHOWN) -> list[Shown]:
    """Acquire a slice of a volume in four ways, the last one with a co-trained network."""
    # Test volumes of seed 0 are generated with 3 * 0 + 2 (kscout.data.generate).
    volume = draw_knee_volume(seed=2, volume=number, n_slices=18, size=SIZE)
    slices = SliceSet.from_images(torch.from_numpy(volume.stored), ["knee"] * 18)
    sizes = {"n_cols": SIZE, "n_initial": N_INITIAL, "horizon": HORIZON}
    ways: dict[str, tuple[Policy, str]] = {
        "random": (policies.build("random", **sizes), "knee-general-unet"),
        "fixed order": (policies.load("knee-general-16-fixed"), "knee-general-unet"),
        "learned policy": (policies.load("knee-general-16-column"), "knee-general-unet"),
        "fixed, co-trained": (policies.load("knee-cotrained-16-fixed"), "knee-cotrained-16-unet"),
    }
    found = []
    for name, (policy, network) in ways.items():
        simulator = Simulator(slices.batch(torch.tensor([8])), reconstruction.load(network))
        drawn = action_uniforms(1, 1, HORIZON, 0) if policy.is_stochastic else None
        plan = Plan(N_INITIAL, HORIZON)
        done = rollout(policy, simulator, plan, uniforms=drawn, keep_images=True)
        mask = simulator.start(N_INITIAL).mask[0].clone()
        mask[done.columns[0, 0]] = True
        assert done.images is not None
        image, score = done.images[-1, 0, 0].numpy(), float(done.ssim[0, 0, -1])
        target = simulator.batch.target[0].numpy()
        found.append(Shown(name, np.asarray(mask), image, target, score))
    return found


def drawn(shown: list[Shown]) -> Figure:
    """Draw the joint of each image, and under it the measured columns and the error."""
    return draw_reconstructions(
        shown[0].target[WINDOW],
        {one.title: one.image[WINDOW] for one in shown},
        ssim={one.title: one.ssim for one in shown},
        masks={one.title: one.mask for one in shown},
    )


def ranks() -> dict[str, int]:
    """Return the rank of the shown volume by the gain of each way over the fixed order."""
    found = [{one.title: one.ssim for one in acquired(number)} for number in VOLUMES]
    shown = found[VOLUMES.index(SHOWN)]
    gains = {
        name: [one[name] - one["fixed order"] for one in found]
        for name in ("learned policy", "fixed, co-trained")
    }
    return {
        name: 1 + sum(gain > shown[name] - shown["fixed order"] for gain in several)
        for name, several in gains.items()
    }


def in_both_lights(figure: Figure, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield where a picture goes and the color of its paper: light, then dark with light ink."""
    yield path, "white"
    for text in figure.findobj(Text):
        text.set_color(DARK_INK)
    yield path.with_stem(f"{path.stem}-dark"), DARK_PAPER


def main(path: Path) -> None:
    """Write both pictures."""
    figure = drawn(acquired())
    path.parent.mkdir(parents=True, exist_ok=True)
    for place, paper in in_both_lights(figure, path):
        with io.BytesIO() as file:
            figure.savefig(file, dpi=140, facecolor=paper)
            Image.open(file).convert("RGB").quantize(256).save(place, optimize=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]))
    else:
        print(ranks())
