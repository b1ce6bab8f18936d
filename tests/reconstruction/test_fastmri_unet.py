"""fastMRI's network, against its definition written out as functions of a state dict."""

import pytest
import torch

from fastmri_definition import expected_output
from kscout.errors import ConfigError
from kscout.physics.fourier import ifft2c
from kscout.physics.sampling import apply_mask
from kscout.reconstruction.fastmri_unet import FastMRIUNet


@pytest.mark.parametrize("n_rows, n_cols", [(16, 24), (17, 23), (18, 29)])
@pytest.mark.parametrize("n_pools", [1, 3])
def test_the_network_is_fastmris(n_pools: int, n_rows: int, n_cols: int) -> None:
    torch.manual_seed(0)
    network = FastMRIUNet(n_channels=3, n_pools=n_pools).network.eval()
    image = torch.randn(2, 1, n_rows, n_cols)
    with torch.no_grad():
        found = network(image)
        expected = expected_output(dict(network.state_dict()), image, n_pools)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_the_default_has_as_many_parameters_as_fastmris_default() -> None:
    widths = [32, 64, 128, 256, 512]
    pairs = [(1, 32), (32, 64), (64, 128), (128, 256), (256, 512)]
    down = sum(9 * (n_in * n_out + n_out * n_out) for n_in, n_out in pairs)
    up = sum(4 * 2 * w * w + 9 * (2 * w * w + w * w) for w in widths[:-1])
    assert sum(p.numel() for p in FastMRIUNet().parameters()) == down + up + 32 + 1 == 7_756_097


def test_the_image_is_the_output_undone_with_the_zero_filled_statistics(
    generator: torch.Generator,
) -> None:
    kspace = 30 * torch.randn(2, 1, 12, 17, dtype=torch.complex64, generator=generator)
    mask = torch.rand(2, 17, generator=generator) < 0.6
    reconstructor = FastMRIUNet(n_channels=2, n_pools=2).eval()
    with torch.no_grad():
        found = reconstructor(kspace, mask)
        zero_filled = ifft2c(apply_mask(kspace, mask))[:, 0].abs()
        for index, image in enumerate(zero_filled):
            scaled = ((image - image.mean()) / image.std()).clamp(-6, 6)
            output = reconstructor.network(scaled[None, None])[0, 0]
            expected = output * image.std() + image.mean()
            undone = found.image[index] * found.std[index] + found.mean[index]
            torch.testing.assert_close(undone, expected, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(found.image.mean(dim=(1, 2)), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(found.image.std(dim=(1, 2)), torch.ones(2), atol=1e-4, rtol=0)


def test_impossible_networks_are_refused() -> None:
    with pytest.raises(ConfigError, match="both must be at least 1"):
        FastMRIUNet(n_pools=0)
