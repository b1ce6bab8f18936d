"""A constant factor of k-space changes no decision, and the image by its magnitude alone."""

import cmath

import pytest
import torch
from torch import Tensor

from coil_slices import disks, several_coils
from kscout.acquisition import Advisor, Scan, Session
from kscout.core import Policy, Reconstructor
from kscout.physics import center_mask, fft2c
from kscout.physics.units import unit_of_kspace
from kscout.policies import load as load_policy
from kscout.reconstruction import load
from kscout.reconstruction.varnet import VarNet
from tiny_sessions import FACTORS, column_policy

SIDE = 128


def acquired(
    kspace: Tensor, scan: Scan, reconstructor: Reconstructor, policy: Policy
) -> tuple[list[int], Tensor]:
    with Advisor(reconstructor, policy.eval()) as advisor:
        session = Session(advisor, scan)
        while columns := session.advise().columns:
            session.measure(columns, kspace[:, :, list(columns)].movedim(-1, 0))
        return session.order, session.image()


def check_equal_up_to_factors(
    kspace: Tensor, scan: Scan, reconstructor: Reconstructor, policy: Policy
) -> None:
    order, image = acquired(kspace, scan, reconstructor, policy)
    for factor in FACTORS:
        its_order, its_image = acquired(kspace * factor, scan, reconstructor, policy)
        assert its_order == order
        assert (its_image / abs(factor) - image).abs().max() < 1e-4 * image.max()


def test_trained_networks_are_independent_of_the_unit_of_kspace() -> None:
    """The slice has a phase that varies, as that of a scanner does."""
    down, across = torch.meshgrid(*[torch.linspace(-1, 1, SIDE)] * 2, indexing="ij")
    phase = torch.polar(torch.ones(SIDE, SIDE), 0.5 * down + across.square())
    generator = torch.Generator().manual_seed(0)
    image = disks(SIDE, SIDE) * (1 + 0.2 * torch.rand(SIDE, SIDE, generator=generator))
    scan = Scan(n_rows=SIDE, n_cols=SIDE, budget=21, initial=16)
    kspace = fft2c(image * phase)[None]
    check_equal_up_to_factors(kspace, scan, load("knee-unet"), load_policy("knee-base-column"))


def test_networks_of_several_coils_are_independent_of_the_unit_of_kspace() -> None:
    torch.manual_seed(0)
    network = VarNet(n_cascades=2, n_channels=4, n_pools=2, sensitivity_pools=2)
    scan = Scan(n_rows=12, n_cols=16, n_coils=4, budget=9, initial=6)
    kspace = several_coils(12, 16)[0][0]
    check_equal_up_to_factors(kspace, scan, network.eval().requires_grad_(False), column_policy())


@pytest.mark.parametrize("n_cols", [9, 12])
@pytest.mark.parametrize("n_center", [1, 2, 5])
def test_the_unit_of_a_positive_image_has_no_phase(n_cols: int, n_center: int) -> None:
    generator = torch.Generator().manual_seed(0)
    kspace = fft2c(torch.rand(1, 11, n_cols, generator=generator))
    unit = unit_of_kspace(kspace * center_mask(n_cols, n_center))
    assert unit.imag == 0 and unit.real > 0


@pytest.mark.parametrize("columns", [[5, 6, 7], [6], [0, 1, 2]])
def test_units_have_the_phase_of_the_factor(columns: list[int]) -> None:
    """Also if DC, or any column and its opposite, is not measured."""
    mask = torch.zeros(12)
    mask[columns] = 1
    generator = torch.Generator().manual_seed(0)
    kspace = fft2c(torch.rand(2, 11, 12, generator=generator)) * mask
    unit = unit_of_kspace(kspace)
    for factor in (*FACTORS, -1, 1e-25):
        found = unit_of_kspace(kspace * factor) / unit / factor
        assert abs(cmath.phase(found)) < 1e-5 and 0.49 < abs(found) < 2.01
    assert unit_of_kspace(kspace * 0) == 1
