"""Metrics agree with the authors' numbers and with independent libraries."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_msssim import ssim as msssim_ssim
from skimage.metrics import structural_similarity

from golden_numbers import Golden
from kscout.errors import ConfigError
from kscout.kernels.registry import compiled_kernels
from kscout.metrics import SsimScorer, nmse, psnr, ssim
from kscout.physics.normalization import denormalize


def images(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    target = torch.rand(3, 2, 23, 29, generator=generator)
    return target + 0.2 * torch.randn(target.shape, generator=generator), target


def test_ssim_map_of_random_images_is_golden(golden: Golden) -> None:
    image, target = golden("metrics", "rnd_x"), golden("metrics", "rnd_y")
    data_range = golden("metrics", "rnd_data_range")
    found = SsimScorer(target, data_range=data_range)
    torch.testing.assert_close(
        found.map(image).flatten(), golden("metrics", "rnd_ssim_map").flatten(), atol=2e-5, rtol=0
    )
    torch.testing.assert_close(found(image), golden("metrics", "rnd_ssim"), atol=2e-5, rtol=0)


def test_scores_of_the_trained_network_are_golden(golden: Golden) -> None:
    mean, std = golden("inputs", "gt_mean_r128"), golden("inputs", "gt_std_r128")
    mean, std = mean.flatten().float(), std.flatten().float()
    target = denormalize(golden("inputs", "gt_norm_r128"), mean, std)
    data_range = golden("inputs", "data_range_r128").flatten().float()
    for name, normalized in (
        ("recon", golden("unet", "trained_out_r128")[:, 0]),
        ("zf", golden("inputs", "zf_r128_a8")),
    ):
        image = denormalize(normalized, mean, std)
        torch.testing.assert_close(
            ssim(image, target, data_range=data_range),
            golden("metrics", f"ssim_{name}")[:, 0],
            atol=2e-5,
            rtol=0,
        )
        torch.testing.assert_close(
            psnr(image, target, data_range=data_range),
            golden("metrics", f"psnr_{name}")[:, 0],
            atol=2e-3,
            rtol=0,
        )


def test_paper_ssim_equals_pytorch_msssim_on_zero_padded_images(generator: torch.Generator) -> None:
    image, target = images(generator)
    padded = [torch.nn.functional.pad(x, (5, 5, 5, 5)) for x in (image, target)]
    expected = msssim_ssim(*padded, data_range=1.7, size_average=False)
    found = ssim(image, target, data_range=1.7).mean(dim=1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_fastmri_ssim_equals_scikit_image(generator: torch.Generator) -> None:
    image, target = images(generator)
    expected = [
        structural_similarity(t, x, data_range=1.3)
        for t, x in zip(target.flatten(0, 1).numpy(), image.flatten(0, 1).numpy(), strict=True)
    ]
    found = ssim(image, target, data_range=1.3, convention="fastmri")
    np.testing.assert_allclose(found.flatten().numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("metric", [ssim, psnr, nmse])
def test_images_of_other_sizes_than_their_targets_are_refused(metric: Any) -> None:
    with pytest.raises(ConfigError, match=r"image of 32x32 pixels .* target of 32x30; crop"):
        # Without the checks of shapes that tests have.
        inspect.unwrap(metric)(torch.rand(2, 32, 32), torch.rand(2, 32, 30), data_range=1.0)


def test_candidates_broadcast_against_one_target(generator: torch.Generator) -> None:
    image, target = images(generator)
    data_range = torch.tensor([1.0, 2.0, 3.0])
    scorer = SsimScorer(target[:, :1], data_range=data_range)
    one_by_one = [
        ssim(image[i, j], target[i, 0], data_range=data_range[i])
        for i in range(3)
        for j in range(2)
    ]
    torch.testing.assert_close(scorer(image).flatten(), torch.stack(one_by_one))


def test_paper_psnr_clamps_the_image_and_not_the_target() -> None:
    target = torch.full((1, 4, 5), 12.0)
    clamped = psnr(torch.full((1, 4, 5), 40.0), target, data_range=2.0)
    torch.testing.assert_close(clamped, torch.tensor([-10 * np.log10(1 + 1e-8)]).float())


def test_nmse_of_doubled_image_is_one(generator: torch.Generator) -> None:
    _, target = images(generator)
    torch.testing.assert_close(nmse(2 * target, target), torch.ones(3, 2))


def test_an_empty_image_of_an_empty_target_has_no_error(generator: torch.Generator) -> None:
    image, target = (x.clone() for x in images(generator))
    image[1, 0] = target[1, 0] = target[2, 1] = 0
    found = nmse(image, target)
    assert found[1, 0] == 0
    assert found[2, 1] == torch.inf
    assert found.isfinite().sum() == 5


def test_ssim_is_differentiable(generator: torch.Generator) -> None:
    image, target = (x[:1, :1, :12, :14].double() for x in images(generator))
    assert torch.autograd.gradcheck(
        lambda x: ssim(x, target, data_range=1.0), (image.requires_grad_(),), atol=1e-4
    )


@pytest.mark.parametrize(("n_rows", "n_cols"), [(21, 34), (7, 13), (40, 32)])
def test_compiled_scores_are_those_in_double_precision(
    n_rows: int, n_cols: int, generator: torch.Generator
) -> None:
    target = torch.rand(3, n_rows, n_cols, generator=generator)
    image = torch.rand(7, n_rows, n_cols, generator=generator)
    data_range = torch.tensor([1.0, 0.7, 2.0])
    units = torch.rand(2, 7, generator=generator) + 0.5
    rows = torch.tensor([2, 0, 1, 1, 0, 2, 2])
    in_units = image * units[0, :, None, None] + units[1, :, None, None]
    expected = ssim(in_units.double(), target[rows].double(), data_range=data_range[rows].double())
    scorer = SsimScorer(target, data_range=data_range)
    for enabled in (True, False):
        with compiled_kernels(enabled=enabled):
            found = scorer.score(image, rows, scale=units[0], shift=units[1])
        torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)
