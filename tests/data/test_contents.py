"""A set read from disk as it is used equals one in memory, and kinds differ in one entry."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from unrolled import Unrolled

from coil_data import coil_images, coil_kspace, coil_store
from kscout.config import ReconstructorTraining
from kscout.core import SliceBatch
from kscout.data import contents as contents_module
from kscout.data.array_files import VolumePart
from kscout.data.info import describe
from kscout.data.kinds import KSPACE, TARGETS
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError, DataError
from kscout.physics.fourier import fft2c
from kscout.physics.sampling import center_mask
from kscout.training.reconstructor import training_loss

RECIPE = {"made by": "tests"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    random = np.random.default_rng(0)
    with StoreWriter(tmp_path / "store", RECIPE) as writer:
        for name, n_slices in (("a", 4), ("b", 3)):
            writer.append("train", name, random.random((n_slices, 9, 11), dtype=np.float32))
        return writer.finish()


def same(one: SliceBatch, other: SliceBatch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.tensors(), other.tensors(), strict=True))


def test_a_lazy_split_hands_out_the_batches_of_a_resident_one(store: Store) -> None:
    resident, lazy = store.split("train", lazy=False), store.split("train", lazy=True)
    assert resident.contents.is_resident and not lazy.contents.is_resident
    index = torch.tensor([5, 0, 5, 3])
    assert same(resident.batch(index), lazy.batch(index))
    pairs = zip(resident.batches(3), lazy.batches(3), strict=True)
    assert all(same(one, other) for one, other in pairs)
    chosen = torch.tensor([6, 2, 1])
    few, fewer = lazy.subset(chosen), lazy.subset(chosen).subset(torch.tensor([2, 0]))
    assert same(few.batch(torch.arange(3)), resident.subset(chosen).batch(torch.arange(3)))
    assert same(fewer.batch(torch.arange(2)), resident.batch(torch.tensor([1, 6])))
    assert torch.equal(lazy.magnitudes(), resident.magnitudes())
    assert lazy.to("cpu").of_volumes("b").magnitudes().shape == (3, 9, 11)


def test_a_subset_of_a_lazy_split_stays_on_disk(store: Store) -> None:
    lazy = store.split("train", lazy=True)
    few = lazy.subset(torch.tensor([2, 4]))
    assert few.contents.array.data_ptr() == lazy.contents.array.data_ptr()


def test_fingerprints_tell_contents_apart_wherever_they_lie(store: Store) -> None:
    resident, lazy = store.split("train", lazy=False), store.split("train", lazy=True)
    assert resident.fingerprint == lazy.fingerprint
    assert resident.sample(3).fingerprint == lazy.sample(3).fingerprint != lazy.fingerprint
    moved = replace(resident, data_range=2 * resident.data_range)
    assert moved.fingerprint != resident.fingerprint


def test_what_does_not_fit_memory_stays_on_disk(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.split("train").contents.is_resident
    n_bytes = (store.path / "train_9x11.npy").stat().st_size
    monkeypatch.setattr(contents_module, "free_memory", lambda _: 2 * n_bytes - 1)
    assert not store.split("train").contents.is_resident
    monkeypatch.setattr(contents_module, "free_memory", lambda _: 2 * n_bytes)
    assert store.split("train").contents.is_resident


def test_what_does_not_fit_a_device_is_handed_out_there(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.rand(5, 9, 11, generator=generator)
    slices = SliceSet.from_images(images, ["a"] * 5)
    monkeypatch.setattr(contents_module, "free_memory", lambda _: images.nbytes)
    there = slices.contents.to("meta")
    assert there.device.type == "meta" and there.array.device.type == "cpu"
    assert there.read(torch.tensor([3, 1])).device.type == "meta"
    assert there.take(torch.tensor([4, 2])).to("cpu").read(torch.tensor([1])).equal(images[2:3])
    monkeypatch.setattr(contents_module, "free_memory", lambda _: 2 * images.nbytes)
    assert slices.contents.to("meta").is_resident


def test_a_sample_is_spread_evenly(store: Store) -> None:
    slices = store.split("train")
    assert slices.sample(3).position.tolist() == [0, 2, 4]
    assert slices.sample(None) is slices and slices.sample(9) is slices
    with pytest.raises(ConfigError, match="limit is 0; it must be 1 or more"):
        slices.sample(0)


def test_info_names_the_kind_and_an_unknown_one_is_told(store: Store) -> None:
    facts = describe(store)
    assert (facts["kind"], facts["n_coils"]) == ("images", 1)
    manifest = store.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"kind": "image"', '"kind": "spokes"'))
    with pytest.raises(DataError, match=r"kind 'spokes' cannot be read .* reads: images, kspace"):
        Store.open(store.path)


def test_images_in_another_layout_are_refused(tmp_path: Path) -> None:
    for stored in (np.zeros((2, 9, 11)), np.zeros((9, 11), dtype=np.float32)):
        writer = StoreWriter(tmp_path / "store", RECIPE)
        with pytest.raises(DataError, match="images are stored as float32 of slice x row x col"):
            writer.append("train", "a", stored)
        writer.close()


@pytest.mark.parametrize("lazy", [False, True])
def test_kspace_of_coils_comes_back_with_its_root_sum_of_squares(
    lazy: bool, tmp_path: Path
) -> None:
    image, maps = coil_images(3, 2, 9, 11)
    kspace = fft2c(image[:, None] * maps)
    with StoreWriter(tmp_path / "coils", RECIPE, kind=KSPACE) as writer:
        writer.append("train", "a", kspace.numpy(), selectable=(1, 10))
        with pytest.raises(DataError, match="have 3 coils, and others 2; store them separately"):
            writer.append("train", "b", np.ones((1, 3, 9, 11), dtype=np.complex64))
        writer.finish()
    opened = Store.open(tmp_path / "coils")
    assert (describe(opened)["kind"], describe(opened)["n_coils"]) == ("kspace", 2)
    slices = opened.split("train", lazy=lazy)
    assert (slices.kind, slices.shape) == ("kspace", (2, 9, 11))
    assert slices.selectable[0].tolist() == [False] + [True] * 9 + [False]
    batch = slices.batch(torch.tensor([2, 0]))
    assert torch.equal(batch.kspace, kspace[[2, 0]])
    expected = (image[:, None] * maps).abs().square().sum(dim=1).sqrt()[[2, 0]]
    torch.testing.assert_close(slices.magnitudes(torch.tensor([2, 0])), expected)
    model = Unrolled()
    mask = center_mask(11, 5).expand(2, -1)
    training_loss(model, batch, mask, ReconstructorTraining(protocol="blind")).backward()
    assert model.step.grad is not None and model.step.grad.isfinite().all()


def test_a_target_weighted_by_sensitivities_has_the_noise_of_one_coil(tmp_path: Path) -> None:
    images, _ = coil_images(1, 8, 40, 42)
    kspace = coil_kspace(1, 8, 40, 42, noise=0.05)
    stores = {}
    for rule, kind in TARGETS.items():
        with StoreWriter(tmp_path / rule, RECIPE, kind=kind) as writer:
            writer.append("test", "a", kspace.numpy())
            stores[rule] = writer.finish()
    assert stores["rss"].fingerprint != stores["weighted"].fingerprint
    assert "sensitivities" in describe(stores["weighted"])["target"]
    air = torch.zeros(40, 42, dtype=torch.bool)
    air[:3], air[-3:] = True, True
    errors = {}
    for rule, store in stores.items():
        found = store.split("test")
        assert found.kind == "kspace" and torch.equal(found.batch(torch.tensor([0])).kspace, kspace)
        errors[rule] = (found.magnitudes()[0] - images[0])[air].abs().mean()
    # Root sums of squares of eight coils' noise, against one.
    assert errors["weighted"] < 0.6 * errors["rss"]
    manifest = tmp_path / "weighted" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"weighted"', '"by heart"'))
    with pytest.raises(DataError, match="targets of rule 'by heart' cannot be read"):
        Store.open(tmp_path / "weighted")


def test_a_set_of_kspace_is_that_of_its_store(tmp_path: Path) -> None:
    store = coil_store(tmp_path / "coils", n_coils=3, size=(9, 11))
    there = store.split("train")
    here = SliceSet.from_kspace(there.batch(torch.arange(len(there))).kspace, there.volumes)
    assert same(here.batch(torch.tensor([3, 1])), there.batch(torch.tensor([3, 1])))


def test_a_volume_written_in_parts_is_the_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents_module, "CHUNK_BYTES", 1)
    whole = coil_store(tmp_path / "whole", n_coils=3, size=(9, 11))
    kspace = np.load(whole.path / "train_9x11.npy")
    with StoreWriter(tmp_path / "parts", RECIPE, kind=KSPACE) as writer:
        bad = [VolumePart(kspace[:1], (0,)), VolumePart(kspace[:1] * np.nan, (1,))]
        with pytest.raises(DataError, match="must be finite"):
            writer.append("val", "bad", iter(bad))
        with pytest.raises(DataError, match="no slice to store"):
            writer.append("train", "none", iter([]))
        for volume, place in (("train-0", 0), ("train-1", 3)):
            parts = (VolumePart(kspace[i : i + 1], (i - place,)) for i in range(place, place + 3))
            writer.append("train", volume, parts)
        for split in ("val", "test"):
            writer.append(split, f"{split}-0", np.load(whole.path / f"{split}_9x11.npy"))
        parted = writer.finish()
    assert parted.fingerprint == whole.fingerprint
    assert sorted(path.name for path in parted.path.glob("*.npy")) == [
        *("test_9x11.npy", "train_9x11.npy", "val_9x11.npy")
    ]
