"""Reconstructions, policies, images and acquisitions that do not belong together."""

from typing import Any

import pytest
import torch

from kscout import policies, reconstruction
from kscout.compatibility import Use, network_notes, policy_notes
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.evaluation.compare import evaluate
from kscout.evaluation.request import EvaluationSetting

PAPER: dict[str, Any] = {"protocol": "paper"}


@pytest.fixture(scope="module")
def small() -> SliceSet:
    """Two slices of 64x64 pixels."""
    images = torch.rand(2, 64, 64, generator=torch.Generator().manual_seed(0))
    return SliceSet.from_images(images, ["a", "a"], name="small", split="test")


def test_a_reconstruction_for_another_matrix_size_is_noted(
    small: SliceSet, caplog: pytest.LogCaptureFixture
) -> None:
    setting = EvaluationSetting(n_initial=4, steps=1, trajectories=1, protocol="paper")
    found = evaluate(["random"], small, "knee-unet", setting)
    quality, size = caplog.messages
    assert found.found.note == f"{quality}; {size}"
    assert quality.startswith("the reconstruction is worse than zero-filled images")
    assert size == (
        "the reconstruction was trained on 128x128 images and is used here on 64x64 images; "
        "train one on these with kscout train reconstructor"
    )


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("heads8-varnet", (1, 128, 128), "from 8 coils and is used here on 128x128 images; "),
        ("heads8-varnet", (4, 128, 128), "here on 128x128 images from 4 coils; train one on these"),
        ("knee-unet", (8, 128, 128), "from 8 coils; the zoo has heads8-varnet for these"),
        ("knee-unet", (1, 96, 128), "here on 96x128 images; train one on these with kscout train"),
        ("heads8-varnet", (8, 128, 128), None),
        ("knee-unet", (1, 128, 128), None),
        ("knee-unet", (0, 128, 128), None),
    ],
)
def test_only_a_reconstruction_for_other_coils_or_sizes_is_noted(
    name: str, shape: tuple[int, int, int], words: str | None
) -> None:
    notes = network_notes(reconstruction.load(name), Use(shape))
    assert len(notes) == (words is not None) and all(str(words) in note for note in notes)


@pytest.mark.parametrize(
    ("policy", "network", "use", "note"),
    [
        (
            *("knee-base-greedy", "heads-general-unet", Use((1, 128, 128), 4, 28)),
            "policies trained with knee-unet run here with another reconstruction: "
            "knee-base-greedy; the zoo has heads-general-4-fixed, heads-general-4-column, "
            "heads-general-4-ensemble for this one",
        ),
        (
            *("knee-general-16-ensemble", "zero-filled", Use((1, 128, 128), 16, 16)),
            "ensembles fitted with knee-general-unet run here with another reconstruction: "
            "knee-general-16-ensemble; fit one by kscout train policy --method ensemble with this "
            "one",
        ),
        (
            *("knee-base-fixed", "knee-unet", Use((1, 128, 128), 4, 28, **PAPER)),
            "policy 'knee-base-fixed' was trained for 16 + 16 columns under protocol paper and "
            "runs here with 4 + 28 under paper; the zoo has knee-long-fixed for this acquisition",
        ),
        (
            *("knee-general-16-ensemble", "knee-general-unet", Use((1, 128, 128), 4, 3)),
            "ensemble 'knee-general-16-ensemble' was fitted for 16 + 16 columns and runs here with "
            "4 + 3; fit one by kscout train policy --method ensemble for this acquisition",
        ),
        (
            *("knee-general-16-column", "knee-general-unet", Use((1, 64, 64), 16, 16, "blind")),
            "policy 'knee-general-16-column' was trained for 16 + 16 of 128 columns under protocol "
            "blind and runs here with 16 + 16 of 64 under blind; train one by kscout train policy "
            "for this acquisition",
        ),
        (
            *("knee-base-greedy", "knee-unet"),
            Use((1, 128, 128), 16, 16, **PAPER, columns_per_step=4),
            "policy 'knee-base-greedy' was trained for 16 + 16 columns, 1 at a time, under "
            "protocol paper and runs here with 16 + 16, 4 at a time, under paper; acquire 1 column "
            "per step, as in trainings",
        ),
    ],
)
def test_a_policy_for_another_reconstruction_or_acquisition_is_noted(
    policy: str, network: str, use: Use, note: str
) -> None:
    loaded = [(policy, policies.load(policy))]
    assert note in policy_notes(loaded, reconstruction.load(network), use)


def test_a_reconstruction_under_the_other_protocol_is_noted() -> None:
    unet = reconstruction.load("knee-unet")
    (note,) = network_notes(unet, Use((1, 128, 128), 16, 16, "blind"))
    words = "was trained for protocol paper and is used here under protocol blind, which lowers"
    assert words in note and note.endswith(" for protocol blind, or use it under paper")
    assert "; the zoo has knee-general-unet, knee-cotrained-16-unet, " in note
    assert network_notes(unet, Use((1, 128, 128), 16, 16, "paper")) == []


def test_a_policy_as_in_its_training_is_not_noted() -> None:
    loaded = [
        (name, policies.load(name))
        for name in ("knee-general-16-ensemble", "knee-general-16-fixed")
    ]
    frozen = reconstruction.load("knee-general-unet").frozen(
        precision="auto", n_rows=128, n_cols=128, device="cpu"
    )
    assert policy_notes(loaded, frozen, Use((1, 128, 128), 16, 16, "blind")) == []


def test_a_policy_for_another_matrix_size_is_rejected(small: SliceSet) -> None:
    setting = EvaluationSetting(n_initial=4, steps=1, trajectories=1, protocol="paper")
    words = (
        r"policy 'knee-base-greedy' was made for 128 rows, the slices have 64; "
        r"import the images at its size"
    )
    with pytest.raises(ConfigError, match=words):
        evaluate(["knee-base-greedy"], small, "knee-unet", setting)
