"""A training's greedy batch next to a plain implementation: same slices and samples, interleaved.

The plain one implements the paper directly in torch: eager float32, torch's defaults and modules,
candidates in one batch, a two-dimensional transform for each candidate mask, SSIM by 11x11
convolutions, the policy's forward and backward pass at every step. It only shares the centered
transforms and the sampling of columns with the engine, so that a faster engine does not make it
faster; tests compare it with the authors' numbers.
"""

import itertools
from statistics import median
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kscout.acquisition.choose import draw_columns
from kscout.apps.bench.engine import Engine, TrainingBatch, wait
from kscout.json_types import JsonObject
from kscout.physics.fourier import fft2c, ifft2c
from kscout.physics.sampling import center_mask


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


N_ROUNDS = 3


def compare_with_plain(engine: Engine, *, horizon: int, q: int) -> JsonObject:
    """Time both, interleaved three times; return the median of the ratios and all measured values.

    Both are warmed up before: kernels compiled, graphs captured. A faster batch must also compute
    the same, so gradients are also compared, outside the timing and with the columns of the plain
    implementation: if the arithmetic differs, the same random numbers may select other columns.
    """
    batch = TrainingBatch(engine, horizon=horizon, q=q)
    unet, policy = plain_unet(engine), plain_policy(batch)
    index, uniforms, followed = batch.inputs
    times: dict[str, list[float]] = {"plain_s": [], "kscout_s": []}

    def plain() -> PlainEstimate:
        policy.zero_grad()
        return plain_greedy_gradients(
            policy,
            unet,
            engine.slices.magnitudes(index),
            engine.slices.data_range[index],
            n_initial=engine.size // 8,
            uniforms=uniforms,
            followed=followed,
        )

    expected = plain()
    batch.gradients()
    for _ in range(N_ROUNDS):
        for name, run in (("plain_s", plain), ("kscout_s", batch.gradients)):
            begun = wait(engine.device)
            run()
            times[name].append(wait(engine.device) - begun)
    ratios = [a / b for a, b in zip(times["plain_s"], times["kscout_s"], strict=True)]
    distinct = [len(row.unique()) for row in expected.columns.flatten(0, 1)]
    return {
        "ratio": median(ratios),
        "ratios": ratios,
        **times,
        "n_slices": len(engine.slices),
        "horizon": horizon,
        "q": q,
        "convolution": engine.backend,
        "precision": engine.frozen.precision,
        "arithmetic": engine.arithmetic,
        "mean_distinct_of_q": sum(distinct) / len(distinct),
        **_compare_results(batch, policy, expected),
    }


def _compare_results(
    batch: TrainingBatch, policy: PlainPolicy, expected: PlainEstimate
) -> JsonObject:
    """Return how far rewards and gradients differ for the columns of the plain implementation.

    `columns_equal` compares sampled columns, and is None if the arithmetic differs.
    """
    is_alike = batch.engine.frozen.precision == "fp32" and batch.engine.device.type == "cpu"
    columns = batch.estimate().columns if is_alike else None
    estimate = batch.estimate(expected.columns)
    name = "fc_out.4.weight"
    last = policy.get_parameter(name).grad, batch.policy.get_parameter(name).grad
    assert last[0] is not None and last[1] is not None
    furthest = (last[0] - last[1]).abs().max() / last[0].abs().max()
    return {
        "columns_equal": None if columns is None else torch.equal(expected.columns, columns),
        "largest_reward_difference": float((expected.rewards - estimate.rewards).abs().max()),
        "relative_gradient_difference": float(furthest),
        "gradient_cosine": gradient_cosine(policy, batch.policy),
    }


def gradient_cosine(first: nn.Module, second: nn.Module) -> float:
    """Return the cosine of the angle between the gradients of two networks with the same names.

    In 16 bit the direction is more informative than the largest difference: rounding moves some
    maxima of 2x2 pixels, and with each a gradient from one weight to others.
    """
    a, b = (_flat_gradient(network) for network in (first, second))
    return float(F.cosine_similarity(a, b, dim=0))


def _flat_gradient(network: nn.Module) -> Tensor:
    gradients = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for _, parameter in sorted(network.named_parameters())
    ]
    return torch.cat([gradient.flatten() for gradient in gradients]).double()


def plain_unet(engine: Engine) -> PlainUNet:
    """Return torch's modules with the engine's weights."""
    unet = PlainUNet(n_channels=engine.unet.n_channels, n_pools=engine.unet.n_pools)
    unet.load_state_dict(engine.unet.network.state_dict())
    return unet.to(engine.device).eval().requires_grad_(False)


def plain_policy(batch: TrainingBatch) -> PlainPolicy:
    """Return torch's modules with the weights of the batch's policy."""
    own = batch.policy
    policy = PlainPolicy(
        n_cols=own.n_cols, n_channels=own.n_channels, n_blocks=own.n_blocks, n_hidden=own.n_hidden
    )
    policy.load_state_dict(own.state_dict())
    return policy.to(batch.engine.device)
