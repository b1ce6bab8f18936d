"""A set read from disk as it is used equals one in memory, and kinds differ in one entry."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from coil_data import coil_images, coil_kspace, coil_store
from kscout.core import SliceBatch
from kscout.data import contents as contents_module
from kscout.data.info import describe
from kscout.data.kinds import KSPACE, TARGETS
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.data.store_writer import StoreWriter
from kscout.data.unfinished import VolumePart
from kscout.errors import ConfigError, DataError
from kscout.physics.fourier import fft2c

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
    assert lazy.subset(chosen).contents.array.data_ptr() == lazy.contents.array.data_ptr()
    few, fewer = lazy.subset(chosen), lazy.subset(chosen).subset(torch.tensor([2, 0]))
    assert same(few.batch(torch.arange(3)), resident.subset(chosen).batch(torch.arange(3)))
    assert same(fewer.batch(torch.arange(2)), resident.batch(torch.tensor([1, 6])))
    assert torch.equal(lazy.magnitudes(), resident.magnitudes())
    assert lazy.to("cpu").of_volumes("b").magnitudes().shape == (3, 9, 11)


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


def close(actual: Tensor, expected: Tensor) -> None:
    """Within the stated tolerance: 1e-5 of the maximum."""
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


def odd_set(generator: torch.Generator) -> SliceSet:
    images = torch.rand(5, 9, 11, generator=generator)
    return SliceSet.from_images(images, ["a", "b", "a", "b", "a"], split="val")


def test_data_range_is_shared_by_a_volume_wherever_its_slices_lie(
    generator: torch.Generator,
) -> None:
    slices = odd_set(generator)
    close(slices.data_range[0], slices.magnitudes()[[0, 2, 4]].max())
    close(slices.data_range[1], slices.magnitudes()[[1, 3]].max())
    assert slices.slices == (0, 0, 1, 1, 2)


def test_a_subset_keeps_ranges_and_positions(generator: torch.Generator) -> None:
    slices = odd_set(generator)
    part = slices.subset(torch.tensor([3, 0])).subset([0])
    batch = part.batch([0])
    assert batch.index.tolist() == [3]
    assert batch.data_range[0] == slices.data_range[3]
    assert (part.volumes, part.slices, part.split) == (("b",), (1,), "val")


def test_batches_cover_every_slice_once_in_order(generator: torch.Generator) -> None:
    slices = odd_set(generator)
    sizes, index = zip(*[(len(b), b.index) for b in slices.batches(2)], strict=True)
    assert sizes == (2, 2, 1)
    assert torch.cat(index).tolist() == [0, 1, 2, 3, 4]


def test_volumes_are_chosen_by_name(generator: torch.Generator) -> None:
    assert odd_set(generator).of_volumes("b").position.tolist() == [1, 3]
    with pytest.raises(DataError, match="'c' among the 2 volumes"):
        odd_set(generator).of_volumes("c")


def test_one_name_per_image_is_required() -> None:
    with pytest.raises(DataError, match="3 images with 2 volume names"):
        SliceSet.from_images(torch.rand(3, 4, 4), ["a", "b"])


def test_a_volume_that_shows_nothing_is_refused() -> None:
    images = torch.rand(3, 4, 5)
    images[1:] = 0
    SliceSet.from_images(images, ["a", "a", "a"])
    with pytest.raises(DataError, match="volume 'b' has pixels up to 0; all must be finite"):
        SliceSet.from_images(images, ["a", "b", "b"])


def test_a_batch_is_never_larger_than_the_set() -> None:
    slices = SliceSet.from_images(torch.ones(3, 4, 5), ["a"] * 3, name="ones", split="test")
    assert [len(batch) for batch in slices.batches(2**70)] == [3]


def test_arrays_of_the_wrong_kind_are_one_sentence() -> None:
    images, kspace = np.ones((2, 9, 11), np.complex64), np.ones((2, 3, 9, 11), np.complex64)
    for wrong in (images, kspace.real, images.real[0]):
        with pytest.raises(
            DataError, match=r"images are .* give real magnitudes \[slice, row, col\]"
        ):
            SliceSet.from_images(wrong, ["a"] * len(wrong))
    for wrong in (images, kspace.real):
        with pytest.raises(DataError, match=r"k-space is .* or images to SliceSet\.from_images"):
            SliceSet.from_kspace(wrong, ["a"] * len(wrong))


def test_arrays_of_any_layout_are_read() -> None:
    images = np.random.default_rng(0).random((3, 4, 5), dtype=np.float32)
    for array in (images.astype(">f4"), images[:, ::-1].copy()[:, ::-1], np.asfortranarray(images)):
        found = SliceSet.from_images(array, ["a"] * 3)
        assert np.array_equal(found.magnitudes().numpy(), images)
