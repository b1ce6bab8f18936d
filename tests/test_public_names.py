"""Names that scripts outside of the repository use."""

from importlib import import_module

import pytest
import torch

import kscout
from kscout.core import Observation

NAMES = {
    "kscout": "acquire check_policy check_reconstructor evaluate make_store read_run rollout "
    "train_joint train_policy train_reconstructor Store",
    "kscout.physics.fourier": "fft2c ifft2c",
    "kscout.physics.sampling": "center_mask",
    "kscout.physics.coils": "combine compress expand sensitivities",
    "kscout.metrics": "nmse psnr ssim",
    "kscout.reconstruction": "RECONSTRUCTORS load save wrap",
    "kscout.reconstruction.sense": "solve",
    "kscout.policies": "POLICIES load save",
    "kscout.training": "Estimator GradientEstimator train_policies",
    "kscout.training.policy_gradient": "greedy_loss non_greedy_loss",
    "kscout.evaluation.adaptivity": "entropies",
    "kscout.evaluation.gradient_noise": "signal_to_noise",
}


@pytest.mark.parametrize("module", NAMES)
def test_a_public_module_has_its_names(module: str) -> None:
    missing = [name for name in NAMES[module].split() if not hasattr(import_module(module), name)]
    assert missing == []


def test_networks_of_the_paper_are_called_by_name() -> None:
    policy = kscout.policies.POLICIES["conv"](n_cols=128)
    seen = Observation(image=torch.rand(1, 128, 128), mask=torch.zeros(1, 128, dtype=torch.bool))
    assert policy(seen).shape == (1, 128)
    assert kscout.reconstruction.RECONSTRUCTORS["unet"]().network is not None
    uniform = torch.full((2, 3, 4, 5), 0.2)
    found = kscout.evaluation.adaptivity.entropies(uniform)
    for values in (found.marginal, found.conditional, found.mutual_information):
        assert len(values) == 2
