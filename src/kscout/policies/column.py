"""A network on k-space with one token per column, for any matrix size.

Inputs per column are log magnitudes of measured k-space, of the reconstruction's k-space and of
their difference, and the same for the conjugate-symmetric column, which for a real image equals the
unmeasured one. Convolutions along the rows reduce each column to a token; the image adds a context
that all tokens share; self-attention exchanges information between columns. Columns are identified
by frequency (in cycles per field of view and per pixel) and remaining budget, so that one network
supports any matrix size, start and budget.
"""

import itertools
import math
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Complex, Float, Inexact, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kscout.core import Observation, Policy
from kscout.errors import ConfigError
from kscout.physics.fourier import at_opposite, frequencies, opposite
from kscout.physics.normalization import magnitude

_N_SIGNALS = 9
_N_WAVES = 7
_N_PLACE = 2 * _N_WAVES + 11
_N_GROUPS = 8
_FAINTEST = 1e-2
"""Added to magnitudes before the logarithm, in standard deviations of the zero-filled image."""
_LEAST_SQUARE = 1e-20
"""Added to squares before the root, whose slope at zero is infinite; negligible in `_FAINTEST`."""
_LEAST_STD = 1e-11
"""Prevents a division by zero for a constant image."""
_PERIOD = 256.0
"""Longest period, in cycles per field of view, of the sinusoidal frequency encoding."""


@final
class ColumnPolicy(Policy):
    """Scores columns by the predicted gain in the metric.

    Baseline gains of a fixed order can be added (`start_from`): since the last layer is zero
    before training, the initial policy is that order.

    Args:
        width: features of a token.
        n_layers: number of attention layers.
        n_heads: heads per attention layer.
        channels: features of the convolutions along the rows, each of which halves the rows.
        image_channels: features of the convolutions over the image, each of which halves it.
        n_bins: rows that remain per token, for any number of rows.
        n_cols: columns of the matrix of the baseline gains; other matrices read them at the same
            frequencies, in cycles per pixel. Predicted gains refer to these columns: a column of a
            matrix with twice as many columns gains half as much.
        horizon: steps of the baseline gains.
        n_initial: measured columns before the first of these steps; gains are looked up by the
            number of measured columns.
    """

    needs_measurement = True
    serves_any_size = True
    changeable = ("n_cols", "n_initial", "horizon")

    prior: Float[Tensor, "step col"]

    def __init__(
        self,
        *,
        n_cols: int,
        horizon: int,
        n_initial: int,
        width: int = 128,
        n_layers: int = 4,
        n_heads: int = 4,
        channels: Sequence[int] = (16, 32, 48),
        image_channels: Sequence[int] = (16, 32, 48, 64, 96),
        n_bins: int = 8,
    ) -> None:
        super().__init__()
        _check_sizes(width, n_heads, n_layers, n_bins, channels, image_channels)
        self.n_cols, self.horizon, self.n_initial = n_cols, horizon, n_initial
        self.width, self.n_layers, self.n_heads, self.n_bins = width, n_layers, n_heads, n_bins
        self.channels, self.image_channels = list(channels), list(image_channels)
        self.along_rows = _convolutions([_N_SIGNALS, *channels], stride=(2, 1))
        self.over_image = _convolutions([2, *image_channels], stride=(2, 2))
        self.token = nn.Linear(channels[-1] * n_bins, width)
        self.context = nn.Linear(2 * image_channels[-1], width)
        self.place = nn.Sequential(nn.Linear(_N_PLACE, width), nn.GELU(), nn.Linear(width, width))
        self.blocks = nn.Sequential(*(_Attention(width, n_heads) for _ in range(n_layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.register_buffer("prior", torch.zeros(horizon, n_cols))

    def start_from(self, gains: Float[Tensor, "step col"]) -> None:
        """Set baseline gains, the scores before training, in the units of the scores."""
        self.prior.copy_(gains)

    def take_weights(self, start: Policy) -> None:
        """Copy the weights of a policy for other sizes, with gains at equal column fractions."""
        state = start.state_dict()
        if isinstance(start, ColumnPolicy):
            measured = self.n_initial + torch.arange(self.horizon)
            state["prior"] = start.baseline(measured, self.n_cols)
        self.load_state_dict(state)

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        if seen.zero_filled is None or seen.mean is None or seen.std is None:
            raise ConfigError(
                "a column network needs measured k-space, and the observation has none; give it "
                "zero_filled, mean and std, as the simulator does"
            )
        step = seen.for_each(seen.step)
        mean, std = seen.mean[:, None, None], seen.std[:, None, None] + _LEAST_STD
        zero_filled = (magnitude(seen.zero_filled) - mean) / std
        context = _convolved(self.over_image, [seen.image, zero_filled])
        shared = torch.cat([context.mean(dim=(2, 3)), context.amax(dim=(2, 3))], dim=1)
        features = _convolved(self.along_rows, _signals(seen, mean, std))
        if features.shape[2] != self.n_bins:
            features = F.adaptive_avg_pool2d(features, (self.n_bins, features.shape[3]))
        features, place = features.flatten(1, 2).transpose(1, 2), self._place(seen, step)
        tokens = self.token(features) + self.place(place) + self.context(shared)[:, None]
        expected = self.head(self.norm(self.blocks(tokens))).float()[..., 0]
        n_cols = seen.mask.shape[1]
        expected = expected + self.baseline(seen.mask.sum(dim=1), n_cols)
        # A column of a finer matrix covers a smaller part of k-space, and gains less. Logits that
        # columns are sampled from are not gains.
        return expected if self.is_stochastic else expected * (self.n_cols / n_cols)

    def baseline(self, measured: Int[Tensor, " n"], n_cols: int) -> Float[Tensor, "n col"]:
        """Return baseline gains for numbers of measured columns of a matrix."""
        return at_frequencies(self.prior, n_cols)[self.row_of(measured, n_cols)]

    def row_of(self, measured: Int[Tensor, " n"], n_cols: int) -> Int[Tensor, " n"]:
        """Return the step of the training with the same fraction of measured columns."""
        step = (measured * (self.n_cols / n_cols)).round().long() - self.n_initial
        return step.clamp(min=0, max=self.horizon - 1)

    def units_at(self, mask: Bool[Tensor, "n col"], step: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return units by the fraction of measured columns, not the number of acquired ones."""
        return super().units_at(mask, self.row_of(mask.sum(dim=1), mask.shape[1]))

    def _place(
        self, seen: Observation, step: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch col feature"]:
        """Return the encoding of each column, independent of measurements, and of the budget."""
        place = _place(seen.mask, step)
        left = (self.horizon - step).clamp(min=1)
        if seen.n_left is not None:
            left = seen.for_each(seen.n_left)
        share = 8.0 * left / seen.mask.shape[1]
        return torch.cat([place, share[:, None, None].expand(*place.shape[:2], 1)], dim=-1)


def at_frequencies(
    gains: Float[Tensor, "step col"], n_cols: int
) -> Float[Tensor, "step other_col"]:
    """Return gains at the columns of another matrix, by frequency in cycles per pixel."""
    n_known = gains.shape[1]
    if n_cols == n_known:
        return gains
    place = frequencies(n_cols, gains.device) * (n_known / n_cols) + n_known // 2
    place = place.clamp(min=0, max=n_known - 1)
    below = place.floor().long().clamp(max=n_known - 2)
    return torch.lerp(gains[:, below], gains[:, below + 1], place - below)


@final
class _Attention(nn.Module):
    """Self-attention over all columns, then two dense layers per column; both are residual."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.ask, self.answer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, tokens: Float[Tensor, "batch col feature"]) -> Tensor:
        parts = self.ask(self.norms[0](tokens)).unflatten(2, (3, self.n_heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value)
        tokens = tokens + self.answer(attended.transpose(1, 2).flatten(2))
        return tokens + self.dense(self.norms[1](tokens))


def _convolutions(widths: Sequence[int], *, stride: tuple[int, int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [
            nn.Conv2d(n_in, n_out, kernel_size=3, stride=stride, padding=1),
            nn.GroupNorm(_N_GROUPS, n_out),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


def _signals(seen: Observation, mean: Tensor, std: Tensor) -> list[Float[Tensor, "batch row col"]]:
    """Return maps over k-space: log magnitudes, log differences, masks and frequencies.

    Reconstruction and measurement are both in units of the statistics of the measurement.
    With several coils magnitudes are combined by their root sum of squares, and differences are
    those of magnitudes.
    """
    assert seen.zero_filled is not None
    n_images, n_rows, n_cols = seen.image.shape
    device = seen.image.device
    expected, *attended = _log_magnitudes(seen.image, seen.zero_filled, mean, std)
    # Masked after the transform, so that not even the sign of a zero depends on other columns.
    known = [torch.where(seen.mask[:, None, :], x, 0.0) for x in attended]
    # The image is real, so the difference of a measured column equals that of its mirror image.
    mirrored = [at_opposite(x) for x in known]
    is_mirrored = seen.mask[:, opposite(n_cols, device)]
    masks = [x[:, None, :].expand(-1, n_rows, -1).float() for x in (seen.mask, is_mirrored)]
    rows, cols = (frequencies(n, device) / (n / 2) for n in (n_rows, n_cols))
    places = [rows.abs()[:, None].expand(-1, n_cols), cols.expand(n_rows, -1)]
    maps = [expected, *known, *mirrored, *masks]
    return [*maps, *(x.expand(n_images, -1, -1) for x in places)]


def _log_magnitudes(
    image: Float[Tensor, "batch row col"],
    zero_filled: Complex[Tensor, "batch coil row col"],
    mean: Float[Tensor, "batch 1 1"],
    std: Float[Tensor, "batch 1 1"],
) -> list[Float[Tensor, "batch row col"]]:
    """Return log magnitudes of the reconstruction, of the measurement and of their difference.

    In real arithmetic, which torch.compile fuses into few kernels; on a CPU squares take a
    third of the time of abs(), which guards against overflow.
    """
    expected, kspace = _spectrum(image), _spectrum(zero_filled)
    # The mean of an image is its coefficient at zero frequency.
    rows, cols = (frequencies(n, image.device) == 0 for n in image.shape[-2:])
    constant = (rows[:, None] & cols) * (mean / std * math.sqrt(image[0].numel()))
    real, imag = kspace.real / std[:, None] - constant[:, None], kspace.imag / std[:, None]
    magnitudes = [_root(expected.real.square() + expected.imag.square())]
    magnitudes.append(_root((real.square() + imag.square()).sum(dim=1)))
    if real.shape[1] == 1:
        apart = (expected.real - real[:, 0]).square() + (expected.imag - imag[:, 0]).square()
        magnitudes.append(_root(apart))
    else:
        magnitudes.append((magnitudes[0] - magnitudes[1]).abs())
    return [torch.log(x + _FAINTEST) for x in magnitudes]


def _root(squares: Float[Tensor, "batch row col"]) -> Float[Tensor, "batch row col"]:
    return (squares + _LEAST_SQUARE).sqrt()


def _spectrum(image: Inexact[Tensor, "*lead row col"]) -> Complex[Tensor, "*lead row col"]:
    """Return k-space up to a phase that is equal for all images."""
    return torch.fft.fftshift(torch.fft.fft2(image, norm="ortho"), dim=(-2, -1))


def _side_by_side(
    maps: Sequence[Float[Tensor, "batch row col"]],
) -> Float[Tensor, "batch channel row col"]:
    """Return maps as channels in channels-last layout, the fastest one for convolutions.

    On CUDA they are padded with zeros to a multiple of eight for tensor cores.
    """
    if not maps[0].is_cuda:
        return torch.stack([*maps], dim=-1).permute(0, 3, 1, 2)
    zeros = [torch.zeros_like(maps[0])] * (-len(maps) % 8)
    is_half = torch.is_autocast_enabled("cuda")
    kind = torch.get_autocast_dtype("cuda") if is_half else maps[0].dtype
    stacked = torch.stack([x.to(kind) for x in (*maps, *zeros)], dim=1)
    return stacked.contiguous(memory_format=torch.channels_last)


def _convolved(layers: nn.Sequential, maps: Sequence[Float[Tensor, "batch row col"]]) -> Tensor:
    first, *others = layers
    assert isinstance(first, nn.Conv2d)
    features = _side_by_side(maps)
    weight = F.pad(first.weight, (0, 0, 0, 0, 0, features.shape[1] - len(maps)))
    features = F.conv2d(features, weight, first.bias, (*first.stride,), 1)
    for layer in others:
        features = layer(features)
    return features


def _place(
    mask: Bool[Tensor, "batch col"], step: Int[Tensor, " batch"]
) -> Float[Tensor, "batch col feature"]:
    """Return the encoding of each column: frequency, measured neighbors, progress."""
    n_cols = mask.shape[1]
    cycles = frequencies(n_cols, mask.device)
    angle = (
        cycles[:, None]
        * (2 * math.pi / _PERIOD)
        * 2.0 ** torch.arange(_N_WAVES, device=mask.device)
    )
    share = cycles / (n_cols / 2)
    fixed = torch.cat(
        [
            angle.sin(),
            angle.cos(),
            torch.stack([cycles / 64, cycles.abs() / 64, share, share.abs()], dim=-1),
        ],
        dim=-1,
    )
    known = mask.float()
    around = [F.avg_pool1d(known[:, None], 2 * n + 1, 1, n)[:, 0] for n in (1, 4)]
    progress = [known.mean(dim=1), step / 16]
    changing = [
        known,
        known[:, opposite(n_cols, mask.device)],
        *around,
        *(x[:, None].expand(-1, n_cols).float() for x in progress),
    ]
    return torch.cat([fixed.expand(mask.shape[0], -1, -1), torch.stack(changing, dim=-1)], dim=-1)


def _check_sizes(
    width: int, n_heads: int, n_layers: int, n_bins: int, *channels: Sequence[int]
) -> None:
    if n_layers < 0 or n_bins < 1:
        raise ConfigError(
            f"n_layers is {n_layers} and n_bins {n_bins}; use at least 0 layers and 1 bin"
        )
    if width < 1 or n_heads < 1 or width % n_heads:
        raise ConfigError(f"width {width} is not a multiple of n_heads {n_heads}; use a multiple")
    wrong = [n for n in itertools.chain(*channels) if n < _N_GROUPS or n % _N_GROUPS]
    if wrong or not all(channels):
        raise ConfigError(
            f"channels {wrong} are not multiples of the {_N_GROUPS} groups of the norm; use "
            "multiples"
        )
