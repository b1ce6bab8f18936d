"""Time of the gradients of a training's greedy batch, next to a plain implementation in torch.

    python lab/bench.py --device cuda
    python lab/bench.py --device cpu --threads 2

The plain one implements the paper directly: eager float32, torch's defaults and modules,
candidates in one batch, a two-dimensional transform for each candidate mask, SSIM by 11x11
convolutions, the policy's forward and backward pass at every step. It only shares the centered
transforms and the sampling of columns with kscout; a test compares it with the authors' numbers.

Both compute the same slices and samples, in turn. Prints and records the median of the ratios of
their times; run this on a machine that is idle.
"""

import itertools
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, final

import torch
from commands import parser
from jaxtyping import Float, Int
from results import record, result
from torch import Tensor, nn
from torch.nn import functional as F

from kscout import reconstruction
from kscout.acquisition.choose import draw_columns
from kscout.assemble import make_policy
from kscout.config import PolicyConfig, read
from kscout.data.makers.knee import draw_knee_volume
from kscout.data.slices import SliceSet
from kscout.device import describe_device, resolve_device
from kscout.physics.fourier import fft2c, ifft2c
from kscout.physics.sampling import center_mask
from kscout.policies.conv import ConvPolicy
from kscout.provenance import commit
from kscout.reconstruction.unet import UNet
from kscout.training.algorithm import Learner
from kscout.training.algorithms.greedy import Greedy, greedy_gradients
from kscout.training.convolution import choose_convolution, convolution, to_layout

N_ROUNDS = 3
N_DRAWS = 8
"""Columns sampled per state, as in the paper."""


def _block(n_in: int, n_out: int) -> list[nn.Module]:
    return [nn.Conv2d(n_in, n_out, 3, padding=1), nn.InstanceNorm2d(n_out), nn.ReLU()]


@final
class _Layers(nn.Module):
    """Layers with the parameter names of the authors' checkpoints."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        return self.layers(features)


def _double_block(n_in: int, n_out: int) -> _Layers:
    return _Layers(*_block(n_in, n_out), nn.Dropout2d(0.0), *_block(n_out, n_out))


@final
class PlainUNet(nn.Module):
    """The paper's U-Net in torch's modules; loads the weights of `kscout.reconstruction.unet`."""

    def __init__(self, *, n_channels: int = 16, n_pools: int = 4) -> None:
        super().__init__()
        widths = [n_channels * 2**level for level in range(n_pools)]
        inputs = [1, *widths[:-1]]
        outputs = [*reversed(widths[:-1]), n_channels]
        self.down_sample_layers = nn.ModuleList(
            _double_block(i, o) for i, o in zip(inputs, widths, strict=True)
        )
        self.conv = _double_block(widths[-1], widths[-1])
        self.up_sample_layers = nn.ModuleList(
            _double_block(2 * i, o) for i, o in zip(reversed(widths), outputs, strict=True)
        )
        self.conv2 = nn.Sequential(
            nn.Conv2d(n_channels, n_channels // 2, 1),
            nn.Conv2d(n_channels // 2, 1, 1),
            nn.Conv2d(1, 1, 1),
        )

    def forward(self, image: Float[Tensor, "batch 1 row col"]) -> Float[Tensor, "batch 1 row col"]:
        skips = []
        for block in self.down_sample_layers:
            image = block(image)
            skips.append(image)
            image = F.max_pool2d(image, 2)
        image = self.conv(image)
        for block in self.up_sample_layers:
            image = F.interpolate(image, scale_factor=2, mode="bilinear", align_corners=False)
            image = block(torch.cat([image, skips.pop()], dim=1))
        return self.conv2(image)


@final
class PlainPolicy(nn.Module):
    """The paper's policy in torch's modules; loads the weights of `kscout.policies.conv`."""

    def __init__(self, *, n_cols: int, n_channels: int, n_blocks: int, n_hidden: int = 256) -> None:
        super().__init__()
        widths = [n_channels * 2**level for level in range(n_blocks + 1)]
        self.channel_layer = _Layers(*_block(1, n_channels))
        self.down_sample_layers = nn.ModuleList(
            _Layers(*_block(i, o), nn.MaxPool2d(2)) for i, o in itertools.pairwise(widths)
        )
        self.fc_out = nn.Sequential(
            nn.Linear(widths[-1] * (n_cols >> n_blocks) ** 2, n_hidden),
            nn.LeakyReLU(0.01),
            nn.Linear(n_hidden, n_hidden),
            nn.LeakyReLU(0.01),
            nn.Linear(n_hidden, n_cols),
        )

    def forward(self, image: Float[Tensor, "batch row col"]) -> Float[Tensor, "batch col"]:
        features = self.channel_layer(image[:, None])
        for block in self.down_sample_layers:
            features = block(features)
        return self.fc_out(features.flatten(1))


class PlainEstimate(NamedTuple):
    """Results of one batch, except for the gradients."""

    columns: Int[Tensor, "step batch q"]
    log_probs: Float[Tensor, "step batch q"]
    rewards: Float[Tensor, "step batch q"]
    losses: Float[Tensor, " step"]


def plain_greedy_gradients(
    policy: nn.Module,
    unet: nn.Module,
    images: Float[Tensor, "batch row col"],
    data_range: Float[Tensor, " batch"],
    *,
    n_initial: int,
    uniforms: Float[Tensor, "batch step q"],
    followed: Int[Tensor, " step"],
    replay: Int[Tensor, "step batch q"] | None = None,
) -> PlainEstimate:
    """Add the greedy estimator's gradients for one batch of images, one backward pass per step.

    The loss of a step is `-sum_i log p_i (r_i - mean r) / (q - 1)` over its q columns, averaged
    over the batch; a reward r is the gain in SSIM (arXiv 2010.16262).

    Both networks receive normalized images, and the U-Net zero-filled ones. `uniforms` in [0, 1)
    determine the samples, unless `replay` has the columns; `followed` is the index of the sample
    that the batch acquires after each step.
    """
    kspace, q = fft2c(images), uniforms.shape[-1]
    mean, std = images.mean(dim=(1, 2), keepdim=True), images.std(dim=(1, 2), keepdim=True)
    targets = ((images - mean) / (std + 1e-11)).clamp(-6, 6) * std + mean

    @torch.no_grad()
    def reconstruct(masks: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalized reconstruction and the score of every candidate mask."""
        zero_filled = ifft2c(kspace[:, None] * masks[:, :, None]).abs()
        own_mean = zero_filled.mean(dim=(2, 3), keepdim=True)
        own_std = zero_filled.std(dim=(2, 3), keepdim=True)
        normalized = ((zero_filled - own_mean) / (own_std + 1e-11)).clamp(-6, 6)
        output = unet(normalized.flatten(0, 1)[:, None]).view(normalized.shape)
        in_units = output * std[:, None] + mean[:, None]
        expected = targets[:, None].expand_as(output).flatten(0, 1)
        ranges = data_range[:, None].expand(masks.shape[:2]).flatten()
        return output, plain_ssim(in_units.flatten(0, 1), expected, ranges).view(masks.shape[:2])

    mask = center_mask(images.shape[-1], n_initial, images.device).expand(len(images), 1, -1)
    seen, base = reconstruct(mask)
    steps = []
    for step in range(uniforms.shape[1]):
        logits = policy(seen[:, 0]).masked_fill(mask[:, 0], -1e7)
        log_probs = logits.log_softmax(dim=-1)
        columns = (
            draw_columns(log_probs.detach(), uniforms[:, step]) if replay is None else replay[step]
        )
        masks = mask | F.one_hot(columns, images.shape[-1]).bool()
        candidates, scores = reconstruct(masks)
        rewards = scores - base
        chosen = log_probs.gather(-1, columns)
        advantages = rewards - rewards.mean(dim=-1, keepdim=True)
        loss = -(chosen * advantages).sum(dim=-1).mean() / (q - 1)
        loss.backward()
        index = followed[step]
        mask, seen, base = masks[:, [index]], candidates[:, [index]], scores[:, [index]]
        steps.append((columns, chosen.detach(), rewards, loss.detach()))
    return PlainEstimate(*(torch.stack(parts) for parts in zip(*steps, strict=True)))


def plain_ssim(
    image: Float[Tensor, "batch row col"],
    target: Float[Tensor, "batch row col"],
    data_range: Float[Tensor, " batch"],
) -> Float[Tensor, " batch"]:
    """Return SSIM by convolutions with an 11x11 Gaussian window, zeros outside the image.

    Wang et al. 2004 (10.1109/TIP.2003.819861) with `k1 = .01` and `k2 = .03`, mean over pixels.
    """
    offset = torch.arange(11, dtype=image.dtype, device=image.device) - 5
    line = torch.exp(-offset.square() / (2 * 1.5**2))
    line = line / line.sum()
    window = (line[:, None] * line)[None, None]

    def blur(x: Tensor) -> Tensor:
        return F.conv2d(x[:, None], window, padding=5)[:, 0]

    mean_x, mean_y = blur(image), blur(target)
    variance_x = blur(image * image) - mean_x * mean_x
    variance_y = blur(target * target) - mean_y * mean_y
    covariance = blur(image * target) - mean_x * mean_y
    c1, c2 = ((k * data_range[:, None, None]) ** 2 for k in (0.01, 0.03))
    numerator = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    denominator = (mean_x * mean_x + mean_y * mean_y + c1) * (variance_x + variance_y + c2)
    return (numerator / denominator).mean(dim=(1, 2))


@final
@dataclass(frozen=True)
class Compared:
    """Times of both implementations in rounds, and how far their gradients agree."""

    plain_s: Sequence[float]
    kscout_s: Sequence[float]
    cosine: float
    """Of the angle between the gradients for the columns of the plain one. In 16 bit the direction
    is more informative than the largest difference: rounding moves some maxima of 2x2 pixels, and
    with each a gradient from one weight to others."""

    @property
    def ratios(self) -> list[float]:
        """How many times as fast kscout was in each round."""
        return [a / b for a, b in zip(self.plain_s, self.kscout_s, strict=True)]


def compare_with_plain(size: int, n_slices: int, horizon: int, device: torch.device) -> Compared:
    """Time both in turn after a warm-up, which compiles kernels and captures graphs."""
    slices, unet = knees(size, n_slices, device), reconstruction.load("knee-unet")
    assert isinstance(unet, UNet)
    unet.to(device).eval()
    training = {"method": "greedy", "batch_size": n_slices, "n_trajectories": N_DRAWS}
    acquisition = {"n_initial": size // 8, "horizon": horizon}
    config = read(PolicyConfig, {"acquisition": acquisition, "training": training})
    own = make_policy(config.policy, seed=0, n_cols=size, n_rows=size).to(device)
    assert isinstance(own, ConvPolicy)
    frozen = unet.frozen(precision="auto", n_rows=size, n_cols=size, device=device)
    backend = choose_convolution("auto", device, trains=False)
    to_layout(frozen, backend)
    estimator = Greedy(Learner.of(own, config), slices, frozen)
    drawn = estimator.draws_of(1)
    order = drawn.order
    draws = {
        "n_initial": size // 8,
        "uniforms": drawn.per_slice["uniforms"],
        "followed": drawn.per_batch["followed"][0],
    }
    plain_unet = PlainUNet(n_channels=unet.n_channels, n_pools=unet.n_pools).to(device)
    plain_unet.requires_grad_(False).load_state_dict(unet.network.state_dict())
    sizes = {"n_channels": own.n_channels, "n_blocks": own.n_blocks, "n_hidden": own.n_hidden}
    policy = PlainPolicy(n_cols=size, **sizes).to(device)
    policy.load_state_dict(own.state_dict())

    def plain() -> PlainEstimate:
        policy.zero_grad()
        images, data_range = slices.magnitudes(order), slices.data_range[order]
        return plain_greedy_gradients(policy, plain_unet, images, data_range, **draws)

    def of_kscout() -> None:
        with convolution(backend):
            estimator.batch_gradients(drawn, 0)

    expected, _ = plain(), of_kscout()
    rounds = [(seconds(plain, device), seconds(of_kscout, device)) for _ in range(N_ROUNDS)]
    # Again with the columns of the plain one: in 16 bit the draws may select other columns.
    estimator.learner.optimizer.zero_grad()
    estimator.view.refresh()
    simulator = estimator.simulator(slices.batch(order))
    with convolution(backend):
        greedy_gradients(estimator.view, simulator, **draws, replay=expected.columns)
    plain_s, kscout_s = zip(*rounds, strict=True)
    return Compared(plain_s, kscout_s, gradient_cosine(policy, own))


def knees(size: int, n_slices: int, device: torch.device) -> SliceSet:
    """Return generated knees on which no network was trained, two slices of each."""
    volumes = [
        draw_knee_volume(seed=77, volume=number, n_slices=2, size=size).stored
        for number in range(n_slices // 2)
    ]
    images = torch.cat([torch.from_numpy(volume) for volume in volumes])
    return SliceSet.from_images(images.to(device), [str(i // 2) for i in range(n_slices)])


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return the duration of a call, until the device is idle."""
    begin = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def gradient_cosine(first: nn.Module, second: nn.Module) -> float:
    """Return the cosine of the angle between the gradients of two networks with the same names."""
    a, b = (
        torch.cat([x.grad.flatten() for _, x in sorted(network.named_parameters())]).double()
        for network in (first, second)
    )
    return float(F.cosine_similarity(a, b, dim=0))


def main() -> None:
    """Compare, and record."""
    options = parser(__doc__)
    options.add_argument("--size", type=int, default=128, help="columns, a multiple of 16 from 64")
    options.add_argument("--threads", type=int, default=2)
    asked = options.parse_args()
    torch.set_num_threads(asked.threads)
    device = resolve_device(asked.device)
    # The paper's batch on CUDA, a smaller one on a CPU, where the plain one takes seconds.
    n_slices, horizon = (16, 16) if device.type == "cuda" else (4, 2)
    found = compare_with_plain(asked.size, n_slices, horizon, device)
    place = describe_device(device)
    if device.type == "cpu":
        place = f"{asked.threads} threads of a CPU ({platform.machine()})"
    fields = {"experiment": "speed", "n_cols": asked.size, "method": "greedy batch"}
    fields |= {"choice": "paper", "metric": "ratio_to_plain_torch", "device": place}
    command = f"python lab/bench.py --device {device.type}"
    record([result(**fields, value=median(found.ratios), commit=commit(), command=command)])
    print(
        f"{asked.size}x{asked.size} on {place}: {median(found.ratios):.2f} times as fast (rounds: "
        f"{' '.join(f'{ratio:.2f}' for ratio in found.ratios)}), "
        f"{1e3 * min(found.kscout_s):.1f} ms; cosine of the gradients {found.cosine:.4f}"
    )


if __name__ == "__main__":
    main()
