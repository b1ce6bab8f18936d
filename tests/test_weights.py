"""Weights come back as they were saved, and a pickle never runs."""

import argparse
import json
import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import kscout
from golden_numbers import GOLDEN
from kscout import policies
from kscout.errors import KScoutError, WeightsError
from kscout.names.renamed import CLASSES
from kscout.pickles import read_pickle, without_prefix
from kscout.policies.fixed import FixedOrder
from kscout.weights import (
    Weights,
    constructor_arguments,
    fingerprint,
    is_described,
    read_weights,
    save_weights,
    store_retired,
)


def save(path: Path, state: dict[str, Tensor], **extra: Any) -> None:
    save_weights(path, Weights("policy", "mine", {"n_cols": 9}, state, extra))


def test_weights_come_back_with_their_description(tmp_path: Path) -> None:
    state = {"a": torch.randn(3, 5), "b": torch.arange(4)}
    save(tmp_path / "w.safetensors", state, epoch=7)
    weights = read_weights(tmp_path / "w.safetensors")
    assert (weights.kind, weights.component) == ("policy", "mine")
    assert weights.arguments == {"n_cols": 9}
    assert weights.extra == {"epoch": 7}
    assert weights.state.keys() == state.keys()
    assert all(torch.equal(weights.state[name], state[name]) for name in state)


def test_strided_and_shared_tensors_are_saved_by_value(tmp_path: Path) -> None:
    base = torch.randn(4, 6)
    save(tmp_path / "w.safetensors", {"t": base.T, "whole": base, "part": base[1]})
    state = read_weights(tmp_path / "w.safetensors").state
    assert torch.equal(state["t"], base.T)
    assert torch.equal(state["part"], base[1])


def test_half_precision_files_load_as_single_precision(tmp_path: Path) -> None:
    value = torch.randn(7)
    save(
        tmp_path / "w.safetensors",
        {"a": value.half(), "b": value.bfloat16(), "n": torch.ones(2).int()},
    )
    state = read_weights(tmp_path / "w.safetensors").state
    assert state["a"].dtype == state["b"].dtype == torch.float32
    assert state["n"].dtype == torch.int32
    torch.testing.assert_close(state["a"], value, atol=2e-3, rtol=2e-3)


def test_equal_weights_are_equal_bytes(tmp_path: Path) -> None:
    state = {name: torch.randn(3) for name in "abcdefgh"}
    for file in ("one", "two"):
        save(tmp_path / file, state, epoch=1, seed=2, commit="abc")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save(path, {"a": torch.ones(2)})
    with pytest.raises(TypeError):
        save(path, {"a": torch.zeros(2)}, not_json=object())
    assert torch.equal(read_weights(path).state["a"], torch.ones(2))
    assert [file.name for file in tmp_path.iterdir()] == ["w.safetensors"]


@pytest.mark.parametrize("length", [0, 7, 50, 991, 1 << 40])
def test_a_file_of_another_length_is_one_sentence_before_it_takes_memory(
    tmp_path: Path, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.safetensors"
    save(path, {"a": torch.ones(200)})
    # A sparse file takes no room on the disk.
    os.truncate(path, length)
    monkeypatch.setattr("kscout.weights.load_file", None)
    with pytest.raises(WeightsError, match="not a complete safetensors file"):
        read_weights(path)


def test_foreign_safetensors_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "foreign")
    with pytest.raises(WeightsError, match="does not say which component"):
        read_weights(tmp_path / "foreign")


def test_missing_files_are_named(tmp_path: Path) -> None:
    for read in (read_weights, read_pickle):
        with pytest.raises(WeightsError, match="nowhere is not a file"):
            read(tmp_path / "nowhere")


def test_formats_are_told_apart_by_their_first_bytes(tmp_path: Path) -> None:
    save(tmp_path / "ours.pt", {"a": torch.ones(2)})
    torch.save({"a": torch.ones(2)}, tmp_path / "theirs.safetensors")
    (tmp_path / "empty").touch()
    assert is_described(tmp_path / "ours.pt")
    assert not is_described(tmp_path / "theirs.safetensors")
    assert not is_described(tmp_path / "empty")


@pytest.mark.parametrize("name", ["recon_4ch", "recon_4ch_data_parallel"])
def test_reference_checkpoints_are_read(name: str) -> None:
    content = read_pickle(GOLDEN / "checkpoints" / f"{name}.pt")
    assert next(iter(content["model"])) == "down_sample_layers.0.layers.0.weight"
    assert content["epoch"] == 6
    assert content["best_dev_loss"] == pytest.approx(0.008136614225804806, rel=1e-12)
    assert isinstance(content["args"], argparse.Namespace)
    assert str(content["args"].exp_dir) == str(Path("runs/exp_dir").as_posix())
    assert content["args"].num_chans == 4


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize(
    "scalar", [np.float64(0.25), np.float32(-3.5), np.int64(-12), np.bool_(True)]
)
def test_numpy_scalars_come_back_as_numbers(
    tmp_path: Path, scalar: np.generic, is_zip: bool
) -> None:
    path = tmp_path / "c.pt"
    torch.save({"n": scalar}, path, _use_new_zipfile_serialization=is_zip)
    assert read_pickle(path)["n"] == scalar.item()


class Attack:
    def __init__(self, function: Any, argument: str) -> None:
        self.call = function, (argument,)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("function", [os.system, eval, exec], ids=["system", "eval", "exec"])
def test_a_malicious_pickle_is_refused_and_not_run(
    tmp_path: Path, is_zip: bool, function: Any
) -> None:
    mark = tmp_path / "mark"
    code = f"touch {mark}" if function is os.system else f"open({str(mark)!r}, 'w')"
    content = {"model": {"w": torch.ones(2)}, "args": Attack(function, code)}
    torch.save(content, tmp_path / "c.pt", _use_new_zipfile_serialization=is_zip)
    with pytest.raises(WeightsError, match=r"never runs code from a checkpoint"):
        read_pickle(tmp_path / "c.pt")
    assert not mark.exists()


def test_the_refusal_names_what_was_found(tmp_path: Path) -> None:
    torch.save({"model": nn.Linear(2, 3)}, tmp_path / "c.pt")
    with pytest.raises(WeightsError, match=r"c\.pt would run torch\.nn\.modules\.linear\.Linear"):
        read_pickle(tmp_path / "c.pt")


def test_a_numpy_object_scalar_is_refused(tmp_path: Path) -> None:
    scalar = np._core.multiarray.scalar if hasattr(np, "_core") else np.core.multiarray.scalar

    class Smuggler:
        def __reduce__(self) -> Any:
            return scalar, (np.dtype("O"), b"anything")

    torch.save({"model": Smuggler()}, tmp_path / "c.pt")
    with pytest.raises(WeightsError, match="NumPy scalar of type 'O8'"):
        read_pickle(tmp_path / "c.pt")


def test_classes_that_lightning_mentions_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("pytorch_lightning.callbacks.model_checkpoint")

    class ModelCheckpoint:
        pass

    ModelCheckpoint.__module__ = module.__name__
    ModelCheckpoint.__qualname__ = "ModelCheckpoint"
    module.ModelCheckpoint = ModelCheckpoint  # type: ignore[attr-defined]
    for name in ("pytorch_lightning", "pytorch_lightning.callbacks"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    content = {"state_dict": {"unet.w": torch.ones(2)}, "callbacks": {ModelCheckpoint: {"best": 1}}}
    torch.save(content, tmp_path / "c.ckpt")
    monkeypatch.undo()
    assert torch.equal(read_pickle(tmp_path / "c.ckpt")["state_dict"]["unet.w"], torch.ones(2))


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04broken", pickle.dumps([1, 2])])
def test_damaged_files_are_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.pt").write_bytes(content)
    with pytest.raises(WeightsError, match=r"c\.pt"):
        read_pickle(tmp_path / "c.pt")


def test_a_prefix_goes_only_where_all_names_have_it() -> None:
    assert without_prefix({"module.a": 1, "module.b": 2}, "module.") == {"a": 1, "b": 2}
    assert without_prefix({"module.a": 1, "b": 2}, "module.") == {"module.a": 1, "b": 2}


class Sized(nn.Module):
    def __init__(self, width: float = 1.0, *, name: str = "x") -> None:
        super().__init__()
        self.width, self.name = width, name


def test_constructor_arguments_are_read_off_the_object() -> None:
    assert constructor_arguments(Sized(3, name="y")) == {"width": 3, "name": "y"}
    assert constructor_arguments(Sized(width=5.0)) == {"width": 5.0, "name": "x"}
    assert constructor_arguments(nn.Module()) == {}


def test_an_argument_that_is_not_kept_is_named() -> None:
    component = Sized()
    del component.width
    with pytest.raises(WeightsError, match=r"set self\.width in __init__"):
        constructor_arguments(component)


def test_arguments_without_a_keyword_cannot_be_saved() -> None:
    class AnyNumber(nn.Module):
        def __init__(self, *widths: int) -> None:
            super().__init__()

    class AnyName(nn.Module):
        def __init__(self, **widths: int) -> None:
            super().__init__()

    class ByPlace(nn.Module):
        def __init__(self, width: int, /) -> None:
            super().__init__()
            self.width = width

    for component in (AnyNumber(3), AnyName(width=3), ByPlace(3)):
        with pytest.raises(WeightsError, match="not a keyword argument; name each argument"):
            constructor_arguments(component)


HEADER = {"schema_version": 1, "kind": "policy", "component": "conv", "arguments": {"n_cols": 16}}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("{", "Expecting property name"),
        ("[" * 100_000, "nested more than 100 levels deep"),
        ([1], r"kscout is \[1\]; expected a section"),
        ({**HEADER, "kind": "dog"}, "kscout.kind is 'dog'; expected one of: reconstructor, policy"),
        ({**HEADER, "component": ["conv"]}, r"kscout.component is \['conv'\]; expected a string"),
        ({**HEADER, "arguments": [3]}, r"kscout.arguments is \[3\]; expected a section"),
        ({"schema_version": 1}, r"\[kscout\] needs kind, .* and component, a string"),
        ({**HEADER, "x": 2}, r"invalid description .* \(unknown setting 'kscout.x'"),
        ({"schema_version": 99}, "schema version 99"),
        ({**HEADER, "schema_version": [1]}, r"schema version \[1\], this kscout reads 1"),
        ({**HEADER, "component": "x:y:z"}, "policy 'x:y:z', which this kscout does not have"),
        ({**HEADER, "arguments": {"n_cols": -3}}, "does not fit conv of this kscout"),
        ({**HEADER, "arguments": {"n_cols": "wide"}}, "does not fit conv of this kscout"),
        ({**HEADER, "arguments": {"n_cols": 16, "n_channels": 0}}, "does not fit conv"),
        ({**HEADER, "arguments": {"n_cols": 16, "n_hidden": 10**6}}, "does not fit conv"),
        ({**HEADER, "arguments": {"n_cols": 16, "n_blocks": 60}}, "does not fit conv"),
        ({**HEADER, "arguments": {"columns": 16}}, "does not fit conv"),
    ],
)
def test_a_description_that_is_wrong_is_one_sentence(
    tmp_path: Path, header: Any, words: str
) -> None:
    from safetensors.torch import save_file

    text = header if isinstance(header, str) else json.dumps(header)
    save_file({"a": torch.ones(2)}, tmp_path / "odd.safetensors", {"kscout": text})
    with pytest.raises(KScoutError, match=words) as caught:
        kscout.policies.load(tmp_path / "odd.safetensors")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [torch.tensor(3.0), torch.ones(0, 1, 3, 3), "text", None])
def test_a_checkpoint_of_odd_shapes_is_one_sentence(tmp_path: Path, value: Any) -> None:
    policy = dict.fromkeys(["channel_layer.layers.0.weight", "fc_out.0.weight", "fc_out.4.weight"])
    torch.save({"model": dict.fromkeys(policy, value)}, tmp_path / "policy.pt")
    with pytest.raises(WeightsError, match=r"shapes of no policy|does not fit|no parameters"):
        kscout.policies.load(tmp_path / "policy.pt")
    names = ["down_sample_layers.0.layers.0.weight", "up_sample_layers.0.layers.0.weight"]
    torch.save({"model": dict.fromkeys(names, value)}, tmp_path / "unet.pt")
    with pytest.raises(WeightsError, match=r"does not fit unet|has no U-Net"):
        kscout.reconstruction.load(tmp_path / "unet.pt")


def test_fingerprints_count_names_and_settings_of_version_0_2(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n_draws, self.order = 3, (1, 2)

    class Now(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n_draws = 3

    Once.__qualname__, Now.__qualname__ = "Once", "Now"
    now = Now()
    assert fingerprint(now) != fingerprint(Once())
    store_retired(now, {"order": [1, 2]})
    monkeypatch.setitem(CLASSES, "Now", "Once")
    assert fingerprint(now) == fingerprint(Once())


def test_the_fingerprint_of_a_fixed_order_counts_its_columns(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.safetensors" for number in range(2)]
    for path, order in zip(paths, ([7, 2], [2, 7]), strict=True):
        policies.save(path, FixedOrder(n_cols=9, order=order))
    first, second = map(policies.load, paths)
    assert fingerprint(first) == fingerprint(policies.load(paths[0]))
    assert fingerprint(first) != fingerprint(second)
