"""Time the paper's U-Net training step by precision and layout; prints JSON.

Run on the device of interest: python benchmarks/reconstructor_speed.py --steps 200
"""

import argparse
import itertools
import json
import time
from dataclasses import replace

import torch

from kscout.assemble import make_reconstructor
from kscout.config import Component, ReconstructorConfig, ReconstructorTraining
from kscout.data.slices import SliceSet
from kscout.device import describe_device, resolve_device
from kscout.training.convolution import BACKENDS, convolution, to_layout
from kscout.training.reconstructor import Supervised, masking_of, validation_ssim
from kscout.training.trainee import Trainee


def wait(device: torch.device) -> float:
    """Return the time when the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(
    slices: SliceSet, training: ReconstructorTraining, backend: str, n_channels: int
) -> dict[str, float]:
    """Time one epoch after a first, and one validation."""
    model = make_reconstructor(Component("unet", {"n_channels": n_channels}))
    model = model.to(slices.device)
    to_layout(model, backend)
    trainee = Trainee.resume(model, ReconstructorConfig(training=training))
    masks = masking_of(slices.n_cols, training).draw(len(slices), 0)
    with convolution(backend):
        begun = wait(slices.device)
        course = Supervised([trainee], slices)
        course.train_epoch(1, lambda _: None)
        warmed = wait(slices.device)
        (result,) = course.train_epoch(2, lambda _: None)
        trained = wait(slices.device)
        validation_ssim(model, slices, masks, training)
        validated = wait(slices.device)
        validation_ssim(model, slices, masks, training)
        again = wait(slices.device)
    step_s = (trained - warmed) / course.n_steps
    return {
        "first_epoch_s": warmed - begun,
        "step_ms": 1e3 * step_s,
        "slices_per_s": training.batch_size / step_s,
        "paper_training_min": 50 * 6959 / training.batch_size * step_s / 60,
        "validation_slices_per_s": len(slices) / (again - validated),
        "loss": result.scores["train_loss"],
    }


def main() -> None:
    """Measure every variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    device = resolve_device(options.device)
    generator = torch.Generator().manual_seed(0)
    shape = (options.steps * options.batch_size, options.size, options.size)
    images = torch.rand(shape, generator=generator).cumsum(dim=-1).to(device)
    slices = SliceSet.from_images(images, ["noise"] * len(images))
    base = ReconstructorTraining(batch_size=options.batch_size)
    results = {}
    backends = [name for name, backend in BACKENDS.items() if not backend.compiled]
    backends = backends[:2] if device.type == "cuda" else backends
    for precision, backend in itertools.product(("fp32", "bf16"), backends):
        training = replace(base, precision=precision)
        name = f"{precision} {backend}"
        results[name] = measure(slices, training, backend, options.channels)
    print(json.dumps({"device": describe_device(device), "torch": torch.__version__, **results}))


if __name__ == "__main__":
    main()
