"""Draw the README's picture: one held-out knee, acquired by three policies of the zoo's store.

Usage: python benchmarks/readme_picture.py docs/images/acquisition.png
"""

import sys
from pathlib import Path

import numpy as np
import torch

from kscout import policies, reconstruction
from kscout.acquisition.episode import Simulator
from kscout.acquisition.rollout import action_uniforms, rollout
from kscout.data.makers.knee import draw_knee_volume
from kscout.data.slices import SliceSet
from kscout.figures.pictures import Shown, draw_examples

N_INITIAL, HORIZON, SIZE = 16, 16, 128


def main(path: Path) -> None:
    """Acquire one slice by each policy and draw what came of it."""
    # Test volumes of seed 0 are drawn with 3 * 0 + 2 (kscout.data.generate).
    volume = draw_knee_volume(seed=2, volume=4, n_slices=18, size=SIZE)
    slices = SliceSet.from_images(torch.from_numpy(volume.stored), ["knee"] * 18)
    simulator = Simulator(slices.batch(torch.tensor([8])), reconstruction.load("knee-unet"))
    sizes = {"n_cols": SIZE, "n_initial": N_INITIAL, "horizon": HORIZON}
    shown = {
        "random": policies.build("random", **sizes),
        "greedy (trained)": policies.load("knee-base-greedy"),
        "oracle": policies.build("oracle", **sizes),
    }
    uniforms = action_uniforms(1, 1, HORIZON, 0)
    target, examples = simulator.batch.target[0].numpy(), []
    for name, policy in shown.items():
        found = rollout(
            policy,
            simulator,
            n_initial=N_INITIAL,
            horizon=HORIZON,
            uniforms=uniforms if name == "random" else None,
            keep_images=True,
        )
        mask = simulator.start(N_INITIAL).mask[0].clone()
        mask[found.columns[0, 0]] = True
        assert found.images is not None
        image = found.images[-1, 0, 0].numpy()
        score = float(found.ssim[0, 0, -1])
        examples.append(Shown(name, np.asarray(mask), image, target, score))
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_examples(examples).savefig(path, dpi=140, facecolor="white")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
