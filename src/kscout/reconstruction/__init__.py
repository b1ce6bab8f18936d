"""Reconstructions: masked k-space to an image. A new one is one file, and a line in `names`."""

from pathlib import Path

import torch
from torch import Tensor

from kscout import names
from kscout.core import Reconstructor
from kscout.errors import WeightsError
from kscout.files import as_path
from kscout.json_types import JsonObject
from kscout.names import untrained_reconstructions
from kscout.pickles import read_checkpoint, without_prefix
from kscout.reconstruction.wrapped import wrap
from kscout.weights import (
    WEIGHTS_NAME,
    Weights,
    build_component,
    check_one_run,
    is_described,
    network_file,
    read_weights,
    save_component,
)
from kscout.zoo import zoo_names, zoo_path

FIRST_WEIGHT = "down_sample_layers.0.layers.0.weight"
CASCADE, SENSITIVITY = "cascades.0.model.unet.", "sens_net.norm_unet.unet."
"""Prefix of the U-Nets in a VarNet's parameters."""

RECONSTRUCTORS: dict[str, type[Reconstructor]] = {
    name: names.RECONSTRUCTORS.resolve(name) for name in names.RECONSTRUCTORS.entries
}
"""The reconstructions of kscout by name; `kscout.names.RECONSTRUCTORS` also finds others."""


def load(path: str | Path, *, device: torch.device | str = "cpu") -> Reconstructor:
    """Load a reconstruction, ready for use.

    Args:
        path: a run folder, a .safetensors file of kscout, a checkpoint of the paper's code, a
            checkpoint or state dict of fastMRI, the name of a reconstruction without training
            (`module:Class` for your own), or, if no such file or folder exists, the name of a zoo
            entry ("knee-unet"). If a folder has the name of a reconstruction without training,
            pass it as a `Path` or as "./name".
        device: device of the reconstructor.
    """
    if isinstance(path, str) and path in names.RECONSTRUCTORS:
        try:
            reconstructor = names.RECONSTRUCTORS.resolve(path)()
        except TypeError as error:
            raise WeightsError(
                f"{path} cannot be built without arguments ({error}); give each a default, or "
                "train it and give the run folder"
            ) from error
        if is_learnable(reconstructor):
            advice = "give the run folder or the file of a trained one"
            if Path(path).is_dir():
                advice = f"if you mean the folder of that name, type ./{path}"
            raise WeightsError(f"{path} has no weights; {advice}")
    else:
        given = as_path(path, "reconstruction")
        file = zoo_path(path) or _weights_file(given)
        weights = read_weights(file) if is_described(file) else _from_pickle(file)
        reconstructor = build_component(file, weights, "reconstructor")
    return reconstructor.to(device).eval()


def save(
    path: Path | str, reconstructor: Reconstructor, *, extra: JsonObject | None = None
) -> None:
    """Write a reconstructor to a .safetensors file that `load` reads.

    Args:
        path: the file, replaced atomically.
        reconstructor: of a class in `RECONSTRUCTORS`, or of your own at the top level of a module.
        extra: JSON values that describe its origin.
    """
    save_component(Path(path), reconstructor, kind="reconstructor", extra=extra)


def is_learnable(reconstructor: Reconstructor) -> bool:
    """Return whether a reconstructor has trainable parameters."""
    return any(True for _ in reconstructor.parameters())


def _weights_file(path: Path) -> Path:
    check_one_run(path)
    given, path = path, network_file(path)
    if not path.is_file() and given.is_dir():
        raise WeightsError(
            f"{given} has no {WEIGHTS_NAME}: its training has saved none yet, or it is not a run "
            "folder; train it, or give another folder"
        )
    if not path.is_file():
        raise WeightsError(
            f"{path} is neither a file nor a run folder; give one, or a reconstruction that needs "
            f"no training: {', '.join(sorted(untrained_reconstructions()))}; or one of the zoo: "
            f"{', '.join(zoo_names('reconstructor'))}"
        )
    return path


def _from_pickle(path: Path) -> Weights:
    state = read_checkpoint(path)
    for prefix in ("unet.", "varnet."):
        inside = {name: value for name, value in state.items() if name.startswith(prefix)}
        state = without_prefix(inside or state, prefix)
    component = _recognize(path, state)
    is_unrolled = component == "varnet"
    within = "" if is_unrolled else "network."
    return Weights(
        kind="reconstructor",
        component=component,
        arguments=(_unrolled_arguments if is_unrolled else _network_arguments)(state),
        state={f"{within}{name}": value.float() for name, value in state.items()},
        extra={"source": path.name},
    )


def _recognize(path: Path, state: dict[str, Tensor]) -> str:
    if any(name.startswith("channel_layer.") for name in state):
        raise WeightsError(f"{path} holds a policy; load it with kscout.policies.load")
    if FIRST_WEIGHT in state and any(name.startswith("up_transpose_conv.") for name in state):
        return "fastmri-unet"
    if FIRST_WEIGHT in state and any(name.startswith("up_sample_layers.") for name in state):
        return "unet"
    if all(name in state for name in (CASCADE + FIRST_WEIGHT, SENSITIVITY + FIRST_WEIGHT)):
        return "varnet"
    names = ", ".join(list(state)[:3]) or "none"
    raise WeightsError(
        f"{path} has no U-Net of the paper or of fastMRI, nor a VarNet (first tensors: {names}); "
        "other networks can only be loaded from files of kscout"
    )


def _unrolled_arguments(state: dict[str, Tensor]) -> JsonObject:
    of_cascades, of_sensitivities = (
        _network_arguments(
            {
                name.removeprefix(prefix): value
                for name, value in state.items()
                if name.startswith(prefix)
            }
        )
        for prefix in (CASCADE, SENSITIVITY)
    )
    cascades = {name.split(".")[1] for name in state if name.startswith("cascades.")}
    of_sensitivities = {f"sensitivity_{key[2:]}": n for key, n in of_sensitivities.items()}
    return {"n_cascades": len(cascades), **of_cascades, **of_sensitivities}


def _network_arguments(state: dict[str, Tensor]) -> JsonObject:
    levels = {name.split(".")[1] for name in state if name.startswith("down_sample_layers.")}
    # A weight without axes is damaged; the constructor raises the error.
    n_channels = state[FIRST_WEIGHT].shape[0] if state[FIRST_WEIGHT].ndim else 0
    return {"n_channels": n_channels, "n_pools": len(levels)}


__all__ = ["RECONSTRUCTORS", "is_learnable", "load", "save", "wrap"]
