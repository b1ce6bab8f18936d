"""Weights that lie compressed are read as plain ones are, and what is wrong is one sentence."""

import json
import lzma
import struct
from pathlib import Path

import pytest
import torch

from kscout import compressed, policies, reconstruction
from kscout.compressed import plain_checksum, plain_stem, unpacked
from kscout.errors import WeightsError
from kscout.evaluation.records.run_names import run_label, seed_in
from kscout.files import checksum
from kscout.weights import Weights, fingerprint, is_described, read_weights, save_weights
from kscout.zoo import ZOO, zoo_file

STATE = {"a": torch.randn(3, 5).half(), "b": torch.arange(4)}
WEIGHTS = Weights("policy", "mine", {"n_cols": 9}, STATE, {"epoch": 7})
COMPRESSED = [name for name in ZOO if zoo_file(name).suffix == ".xz"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "w.safetensors.xz"
    save_weights(path, WEIGHTS)
    return path


def test_compressed_weights_are_those_of_the_plain_file(file: Path) -> None:
    plain = file.with_suffix("")
    save_weights(plain, WEIGHTS)
    assert lzma.decompress(file.read_bytes()) == unpacked(file) == plain.read_bytes()
    assert plain_checksum(file) == plain_checksum(plain) == checksum(plain) != checksum(file)
    for only_described in (True, False):
        one, two = (read_weights(x, only_described=only_described) for x in (file, plain))
        assert one.state.keys() == two.state.keys() == (set() if only_described else STATE.keys())
        for name, value in one.state.items():
            assert value.dtype == two.state[name].dtype and torch.equal(value, two.state[name])
        assert (one.kind, one.component) == (two.kind, two.component) == ("policy", "mine")
        assert (
            (one.arguments, one.extra)
            == (two.arguments, two.extra)
            == ({"n_cols": 9}, {"epoch": 7})
        )
    assert is_described(file) and is_described(plain)
    assert sorted(x.name for x in file.parent.iterdir()) == [plain.name, file.name]


def test_a_description_is_read_without_the_tensors(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"a": torch.randn(500_000)}
    save_weights(file, Weights("policy", "mine", {}, state, {"epoch": 7}))
    file.write_bytes(file.read_bytes()[:100_000])
    assert read_weights(file, only_described=True).extra == {"epoch": 7}
    monkeypatch.setattr(compressed, "MOST_BYTES", 1000)
    assert read_weights(file, only_described=True).component == "mine"


def test_a_checksum_is_of_the_file_as_it_is_now(file: Path) -> None:
    before = plain_checksum(file)
    save_weights(file, Weights("policy", "mine", {}, {"a": torch.ones(9)}))
    assert plain_checksum(file) != before


@pytest.mark.parametrize("n_bytes", [0, 3, 6, 12, 13, 60, -30, -1])
def test_a_truncated_file_is_one_sentence(file: Path, n_bytes: int) -> None:
    file.write_bytes(file.read_bytes()[:n_bytes])
    for load in (policies.load, reconstruction.load):
        with pytest.raises(WeightsError, match=r"w\.safetensors\.xz is .*; copy") as caught:
            load(file)
        assert "\n" not in str(caught.value)
    with pytest.raises(WeightsError, match="not a complete safetensors file"):
        read_weights(file)


@pytest.mark.parametrize("place", [7, 20, 40, 150, -20])
def test_a_damaged_file_is_one_sentence(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(
        WeightsError, match=r"not a complete safetensors file \(.+\); copy or train"
    ):
        policies.load(file)
    with pytest.raises(WeightsError, match="not a complete safetensors file"):
        plain_checksum(file)


@pytest.mark.parametrize("more", [b"\0", b"more", lzma.compress(b"more")])
def test_what_follows_after_the_end_is_refused(file: Path, more: bytes) -> None:
    file.write_bytes(file.read_bytes() + more)
    with pytest.raises(WeightsError, match=r"safetensors file \(it has additional bytes at its"):
        read_weights(file)


def test_few_bytes_that_unpack_to_many_are_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed, "MOST_BYTES", 10_000)
    file.write_bytes(lzma.compress(bytes(10_001)))
    with pytest.raises(
        WeightsError, match=r"unpacks to more than 10,000 bytes, the limit .*; unpack it by `xz -d`"
    ) as caught:
        policies.load(file)
    assert "\n" not in str(caught.value)
    file.write_bytes(lzma.compress(bytes(10_000)))
    assert unpacked(file) == bytes(10_000)
    assert unpacked(file, 3) == bytes(3)


def test_a_file_that_asks_for_much_memory_is_refused(file: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**28}]
    file.write_bytes(lzma.compress(unpacked(file), filters=filters))
    with pytest.raises(WeightsError, match=r"not a complete safetensors file \(Memory usage limit"):
        read_weights(file)


@pytest.mark.parametrize("only_described", [True, False])
@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"hello", struct.pack("<Q", 2**60) + b"{}", struct.pack("<Q", 3) + b"[1]"),
        struct.pack("<Q", 20) + b'{"__metadata__": [3]}'[:20],
        struct.pack("<Q", 31) + json.dumps({"__metadata__": {"kscout": 12}}).encode().ljust(31),
    ],
)
def test_compressed_bytes_that_are_no_weights_are_one_sentence(
    file: Path, content: bytes, only_described: bool
) -> None:
    file.write_bytes(lzma.compress(content))
    with pytest.raises(WeightsError, match="not a complete safetensors file"):
        read_weights(file, only_described=only_described)


def test_names_of_compressed_files_are_those_of_plain_ones(tmp_path: Path) -> None:
    names = ("a-seed3.safetensors.xz", "a-seed3.safetensors", "a-seed3.xz", "a-seed3")
    for name in names:
        path = tmp_path / name
        path.touch()
        assert (plain_stem(path), run_label(path), seed_in(path)) == ("a-seed3", "a", 3)
    assert [run_label(zoo_file(name)) for name in ZOO] == list(ZOO)


@pytest.mark.parametrize("name", ["knee-unet", "knee-general-16-column"])
def test_a_file_of_the_zoo_can_be_made_plain(name: str, tmp_path: Path) -> None:
    load = policies.load if ZOO[name] == "policy" else reconstruction.load
    plain = tmp_path / f"{name}.safetensors"
    plain.write_bytes(lzma.decompress(zoo_file(name).read_bytes()))
    assert plain.stat().st_size > 1.1 * zoo_file(name).stat().st_size
    assert fingerprint(load(plain)) == fingerprint(load(name)) == fingerprint(load(zoo_file(name)))


def test_the_networks_of_the_zoo_lie_compressed() -> None:
    plain = ("-fixed", "-ensemble")
    assert [name for name in ZOO if not name.endswith(plain)] == COMPRESSED
