"""Image quality by named convention: one value per image of [..., row, col].

| convention | SSIM | PSNR |
|---|---|---|
| `paper` | 11x11 Gaussian window (sigma 1.5), zero padded, mean over all pixels, biased covariance | image clamped to [0, 10], both divided by `data_range`, 1e-8 added to the error |
| `fastmri` | 7x7 uniform window, 3-pixel border left out, unbiased covariance | `data_range` squared over the error |

NMSE is the squared error over the target's energy in both, and 0 for an empty image of an empty
target. Scores of different conventions are not comparable: the window changes SSIM by .01,
the choice of `data_range` by up to .15.
"""  # noqa: E501 - a table row is one line

from collections.abc import Callable
from copy import copy
from functools import lru_cache
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.errors import ConfigError, unknown_name
from kscout.kernels.cuda import compile_kernel, count_on
from kscout.kernels.native import call, count, native_library, over_parts, scratch
from kscout.kernels.registry import Request, serving

PSNR_CEILING = 10
"""Upper limit of reconstructions for PSNR in the convention `paper`."""

Convention = Literal["paper", "fastmri"]
CONVENTIONS: tuple[Convention, ...] = ("paper", "fastmri")
_K1, _K2 = 0.01, 0.03


def _check_convention(convention: str) -> None:
    if convention not in CONVENTIONS:
        raise unknown_name("metric convention", convention, list(CONVENTIONS))


def _check_pixels(image: Tensor, target: Tensor) -> None:
    if image.shape[-2:] != target.shape[-2:]:
        scores, expected = ("x".join(map(str, x.shape[-2:])) for x in (image, target))
        raise ConfigError(
            f"an image of {scores} pixels cannot be scored by a target of {expected}; crop or "
            "resize one of them"
        )


def _per_image(data_range: Tensor | float, image: Tensor) -> Tensor:
    value = torch.as_tensor(data_range, dtype=image.dtype, device=image.device)
    return value.reshape(value.shape + (1,) * (image.ndim - value.ndim))


@lru_cache(maxsize=32)
def blur_matrix(
    size: int, convention: str, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "out size"]:
    """Return the banded matrix B that averages along one axis with the convention's window.

    Blurring, B x B^T, is then two matrix products, many times faster than a convolution. The
    result is shared between calls and must not be modified.
    """
    if convention == "paper":
        offset = torch.arange(11, dtype=torch.float64) - 5
        window = torch.exp(-offset.square() / (2 * 1.5**2))
        window, pad = window / window.sum(), 5
    else:
        window, pad = torch.full((7,), 1 / 7, dtype=torch.float64), 0
    rows = torch.zeros(size + 2 * pad - len(window) + 1, size + 2 * pad, dtype=torch.float64)
    for row in range(rows.shape[0]):
        rows[row, row : row + len(window)] = window
    return rows[:, pad : pad + size].to(dtype).to(device)


@final
class SsimScorer:
    """SSIM against fixed targets, whose statistics are computed once.

    Targets and images broadcast over their leading axes, so that many candidate reconstructions
    [slice, candidate, row, col] are scored against [slice, 1, row, col].
    """

    def __init__(
        self,
        target: Float[Tensor, "*lead row col"],
        *,
        data_range: Tensor | float,
        convention: str = "paper",
    ) -> None:
        _check_convention(convention)
        n_rows, n_cols = target.shape[-2:]
        kind = (convention, target.dtype, target.device)
        self.convention = convention
        self.down, self.across = blur_matrix(n_rows, *kind), blur_matrix(n_cols, *kind).T
        # fastMRI averages over 7x7 pixels and divides covariances by 48, not 49.
        self.unbias = 49 / 48 if convention == "fastmri" else 1.0
        value = _per_image(data_range, target)
        self.c1, self.c2 = (_K1 * value).square(), (_K2 * value).square()
        self.target = target
        self.mean = self._blur(target)
        self.variance = (self._blur(target.square()) - self.mean.square()) * self.unbias

    def _blur(
        self, image: Float[Tensor, "*lead row col"]
    ) -> Float[Tensor, "*lead out_row out_col"]:
        return self.down @ image @ self.across

    def score(
        self,
        image: Float[Tensor, "n row col"],
        rows: Int[Tensor, " n"],
        *,
        scale: Float[Tensor, " _"],
        shift: Float[Tensor, " _"],
        is_by_target: bool = False,
        n_images: Int[Tensor, ""] | None = None,
    ) -> Float[Tensor, " n"]:
        """Score `scale * image + shift` against the targets `rows`, by kernels if they exist.

        Scale and shift are those of each image, or `is_by_target`. Scores after the first
        `n_images`, a number on the device, are undefined.
        """
        request = Request(image.device, frozenset({image.dtype}), convention=self.convention)
        kind = serving("ssim", request)
        if kind == "cuda":
            return self._score_on_cuda(image, rows, (scale, shift), is_by_target, n_images)
        if is_by_target:
            scale, shift = scale[rows], shift[rows]
        if kind == "c":
            return self._score_compiled(image, rows, scale, shift)
        return self.rows(rows)(image * scale[:, None, None] + shift[:, None, None])

    def _score_on_cuda(
        self,
        image: Tensor,
        rows: Tensor,
        units: tuple[Tensor, Tensor],
        is_by_target: bool,
        n_images: Tensor | None,
    ) -> Tensor:
        n, n_rows, n_cols = image.shape
        n_tiles = -(-n_rows // 32) * -(-n_cols // 32)
        count = count_on(image.device, n) if n_images is None else n_images
        sums, means = (torch.empty(n, *shape, device=image.device) for shape in ((n_tiles,), ()))
        constants = [x.expand(len(self.target), 1, 1).contiguous() for x in (self.c1, self.c2)]
        targets = [self.target.contiguous(), self.mean, self.variance]
        # The middle row of the banded matrix is the window.
        window = blur_matrix(11, "paper", image.dtype, image.device)[5]
        given = [x.contiguous() for x in (image, *units, rows)]
        compile_kernel("ssim.cu", "score")(
            (n_tiles, n, 1),
            (256, 1, 1),
            [
                *(*given, *targets, *constants, window),
                *(sums, count, n_rows, n_cols, int(is_by_target)),
            ],
        )
        compile_kernel("ssim.cu", "average")(
            (n, 1, 1), (32, 1, 1), [sums, means, count, n_tiles, n_rows * n_cols]
        )
        return means

    def _score_compiled(self, image: Tensor, rows: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        library, (n, n_rows, n_cols) = native_library("ssim_cpu.c"), image.shape
        scores, size = image.new_empty(n), count(library.ssim_scratch, n_rows, n_cols)
        inputs = [x.contiguous() for x in (image, rows.long(), scale, shift)]
        constants = [x.expand(len(self.target), 1, 1).contiguous() for x in (self.c1, self.c2)]
        targets = [self.target.contiguous(), self.mean.contiguous(), self.variance.contiguous()]
        window = blur_matrix(11, "paper", image.dtype, image.device)[5].contiguous()

        def run(begin: int, end: int) -> None:
            shared = (*targets, *constants, window, scores[begin:], scratch(size))
            call(library.ssim, *(x[begin:] for x in inputs), *shared, end - begin, n_rows, n_cols)

        over_parts(n, run)
        return scores

    def rows(self, selection: Int[Tensor, " n"]) -> "SsimScorer":
        """Return the scorer of the selected targets; duplicates are allowed."""
        chosen = copy(self)
        for name in ("c1", "c2", "target", "mean", "variance"):
            value = getattr(self, name)
            if value.shape[0] == self.target.shape[0]:
                setattr(chosen, name, value[selection])
        return chosen

    def map(self, image: Float[Tensor, "*lead row col"]) -> Float[Tensor, "*out row_ col_"]:
        """Return SSIM at every window position."""
        mean = self._blur(image)
        variance = (self._blur(image.square()) - mean.square()) * self.unbias
        covariance = (self._blur(image * self.target) - mean * self.mean) * self.unbias
        numerator = (2 * mean * self.mean + self.c1) * (2 * covariance + self.c2)
        luminance = mean.square() + self.mean.square() + self.c1
        return numerator / (luminance * (variance + self.variance + self.c2))

    def __call__(self, image: Float[Tensor, "*lead row col"]) -> Float[Tensor, "*out"]:
        return self.map(image).mean(dim=(-2, -1))


def ssim(
    image: Float[Tensor, "*lead row col"],
    target: Float[Tensor, "*lead row col"],
    *,
    data_range: Tensor | float,
    convention: str = "paper",
) -> Float[Tensor, "*lead"]:
    """Return the structural similarity of each image with its target.

    Args:
        image: images to score.
        target: the ground truth.
        data_range: largest value of the image, per image or one for all; its axes align with
            the leading axes of `image`.
        convention: see the table above.
    """
    _check_pixels(image, target)
    return SsimScorer(target, data_range=data_range, convention=convention)(image)


def psnr(
    image: Float[Tensor, "*lead row col"],
    target: Float[Tensor, "*lead row col"],
    *,
    data_range: Tensor | float,
    convention: str = "paper",
) -> Float[Tensor, "*lead"]:
    """Return the peak signal-to-noise ratio of each image in dB."""
    _check_convention(convention)
    _check_pixels(image, target)
    value = _per_image(data_range, image)
    if convention == "paper":
        error = ((image.clamp(0, PSNR_CEILING) - target) / value).square().mean(dim=(-2, -1)) + 1e-8
    else:
        error = ((image - target) / value).square().mean(dim=(-2, -1))
    return -10 * error.log10()


def nmse(
    image: Float[Tensor, "*lead row col"],
    target: Float[Tensor, "*lead row col"],
    *,
    data_range: Tensor | float | None = None,
    convention: str = "paper",
) -> Float[Tensor, "*lead"]:
    """Return ||image - target||^2 / ||target||^2 per image; 0 if both are zero.

    `data_range` is ignored; it makes the signatures of all metrics equal.
    """
    _check_convention(convention)
    _check_pixels(image, target)
    error = (image - target).square().sum(dim=(-2, -1))
    # An empty target has no energy; without this case one slice would make a split's mean NaN.
    return (error / target.square().sum(dim=(-2, -1))).masked_fill(error == 0, 0.0)


def negative_nmse(
    image: Float[Tensor, "*lead row col"],
    target: Float[Tensor, "*lead row col"],
    *,
    data_range: Tensor | float | None = None,
) -> Float[Tensor, "*lead"]:
    """Return the negative normalized squared error, so that larger is better, as in all rewards."""
    return -nmse(image, target, data_range=data_range)


@final
class MetricScorer:
    """Any metric against fixed targets, by a plain call.

    Args:
        metric: called with images, targets and `data_range`; one value per image, larger is better.
    """

    def __init__(
        self,
        metric: Callable[..., Tensor],
        target: Float[Tensor, "slice row col"],
        *,
        data_range: Float[Tensor, " slice"],
    ) -> None:
        self.metric, self.target, self.data_range = metric, target, data_range

    def score(
        self,
        image: Float[Tensor, "n row col"],
        rows: Int[Tensor, " n"],
        *,
        scale: Float[Tensor, " _"],
        shift: Float[Tensor, " _"],
        is_by_target: bool = False,
        n_images: Int[Tensor, ""] | None = None,
    ) -> Float[Tensor, " n"]:
        """Score `scale * image + shift` against the targets `rows`."""
        if is_by_target:
            scale, shift = scale[rows], shift[rows]
        images = image.float() * scale[:, None, None] + shift[:, None, None]
        scores = self.metric(images, self.target[rows], data_range=self.data_range[rows])
        return checked_scores(scores, len(rows)).float()


def checked_scores(scores: object, n: int) -> Tensor:
    """Return the n values of a metric; raise an error for anything else."""
    if isinstance(scores, Tensor) and scores.shape == (n,):
        return scores
    shape = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    raise ConfigError(f"a metric gave {shape} for {n} images; return a tensor of one value each")


__all__ = ["MetricScorer", "SsimScorer", "checked_scores", "negative_nmse", "nmse", "psnr", "ssim"]
