"""Networks for other runtimes: from measured k-space and mask to image and scores, as ONNX.

K-space consists of pairs of real and imaginary parts, and networks with complex numbers run in
real arithmetic (`kscout.apps.export.pairs`), because ONNX has no complex numbers. Sensitivities
are an input, if a reconstruction has any: they are estimated once, at the start.
"""

import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, final

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor, nn

from kscout import __version__
from kscout.acquisition.state import shown_to
from kscout.apps.export.pairs import MissingOperatorError, from_pairs, real_arithmetic
from kscout.columns import LEAST_CENTRAL
from kscout.compatibility import Use, check_matrix, network_notes, policy_notes, warn
from kscout.core import Measurement, Observation, Policy, Reconstructor
from kscout.errors import ConfigError, RunError, needs_extra
from kscout.files import written_whole
from kscout.kernels.registry import compiled_kernels
from kscout.physics.coils import combine, rough_sensitivities
from kscout.physics.fourier import fft2c, ifft2c
from kscout.physics.normalization import denormalize, statistics
from kscout.physics.sampling import apply_mask, center_mask
from kscout.randomness import keyed_generator
from kscout.reconstruction.total_variation import SenseTotalVariation, TotalVariation
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.weights import fingerprint

OPSET = 20
TOLERANCE = 1e-4
"""Tolerance of images (in standard deviations of the zero-filled image) and scores to torch."""
_N_TOGETHER = 4


@final
@dataclass(frozen=True)
class Exported:
    """The description in a file's metadata, under the key `kscout`."""

    kscout: str
    opset: int
    n_rows: int
    n_cols: int
    reconstructor: str | None
    policy: str | None
    """Fingerprints of the weights."""
    n_checked: int
    """Number of slices on which onnxruntime was compared with torch."""
    image_error: float | None
    score_error: float | None
    """Largest differences, in the units of `TOLERANCE`."""
    n_same_choices: int | None
    """Number of slices with the same best column."""


@final
class Graph(nn.Module):
    """From k-space as real pairs, and a mask, to the image in its own units and scores.

    Without a reconstruction the image is an input; without a policy there are no scores.
    """

    def __init__(
        self, reconstructor: Reconstructor | None, policy: Policy | None, *, has_maps: bool
    ) -> None:
        super().__init__()
        self.reconstructor, self.policy, self.has_maps = reconstructor, policy, has_maps

    @property
    def counts(self) -> bool:
        """Whether the step and the remaining columns are inputs."""
        return self.policy is not None and self.policy.needs_measurement

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs, in order."""
        is_alone, counts = self.reconstructor is None, ["step", "n_left"] * self.counts
        kspace = ["kspace"] * (self.counts or not is_alone)
        seen = ["image", *(["mean", "std"] * self.counts)] * is_alone
        return [*kspace, "mask", *(["maps"] * self.has_maps), *counts, *seen]

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        image, scores = self.reconstructor is not None, self.policy is not None
        return ["image"] * image + ["scores"] * scores

    def forward(
        self,
        kspace: Float[Tensor, "batch coil row col 2"] | None = None,
        mask: Bool[Tensor, "batch col"] | None = None,
        maps: Float[Tensor, "batch coil row col 2"] | None = None,
        step: Int[Tensor, " batch"] | None = None,
        n_left: Int[Tensor, " batch"] | None = None,
        image: Float[Tensor, "batch row col"] | None = None,
        mean: Float[Tensor, " batch"] | None = None,
        std: Float[Tensor, " batch"] | None = None,
    ) -> tuple[Tensor, ...]:
        assert mask is not None
        made: tuple[Tensor, ...] = ()
        with real_arithmetic():
            measured = None if kspace is None else apply_mask(from_pairs(kspace), mask)
            zero_filled = None if measured is None else ifft2c(measured)
            if self.reconstructor is not None:
                assert zero_filled is not None
                output = self.reconstructor.reconstruct(_measurement(zero_filled, mask, maps))
                image, mean, std = output.image, output.mean, output.std
                made = (denormalize(image, mean, std),)
            if self.policy is None:
                return made
            assert image is not None
            seen = Observation(image=image, mask=mask)
            if step is not None and measured is not None and zero_filled is not None:
                shown = _one_image(zero_filled, measured, mask)
                seen = replace(seen, zero_filled=shown, mean=mean, std=std)
                seen = replace(seen, step=step, n_left=n_left)
            return *made, self.policy(seen)


def _measurement(zero_filled: Tensor, mask: Tensor, maps: Tensor | None) -> Measurement:
    # Written out, so that the number of coils is dynamic.
    magnitude = zero_filled.abs().square().sum(dim=1).sqrt()
    summary = (magnitude, *statistics(magnitude))
    complex_maps = None if maps is None else from_pairs(maps)
    return Measurement(zero_filled, mask, summary=summary, maps=complex_maps)


def _one_image(zero_filled: Tensor, kspace: Tensor, mask: Tensor) -> Tensor:
    """Return the combined coils, or the image of a single coil, for a dynamic number of coils."""
    several = combine(zero_filled, rough_sensitivities(kspace, mask))[:, None]
    n_coils = torch.ones_like(zero_filled.real[:1, :, :1, :1]).sum()
    return torch.where(n_coils == 1, zero_filled[:, :1], several)


def export_onnx(
    out: Path,
    reconstructor: Reconstructor | None,
    policy: Policy | None,
    *,
    n_rows: int,
    n_cols: int,
    n_checked: int = 100,
) -> Exported:
    """Write a network as ONNX for one image size, any batch and number of coils, and check it.

    Random slices are compared before the file is written. Without a reconstruction the file only
    contains the policy, which may be no oracle.
    """
    if policy is not None and policy.needs_target:
        raise ConfigError(
            f"{type(policy).__name__} is an oracle: it uses the ground truth, which no scanner "
            "has; export another policy"
        )
    if policy is not None and policy.needs_gain_estimator:
        raise ConfigError(
            f"{type(policy).__name__} reconstructs and scores for every column, which ONNX cannot "
            "represent as a network; export another policy"
        )
    if isinstance(reconstructor, TotalVariation | SenseTotalVariation):
        raise ConfigError(
            f"{type(reconstructor).__name__} solves each image iteratively, which ONNX cannot "
            "represent as a network; export a trained reconstruction, zero-filled or only a policy"
        )
    onnx, runtime = onnx_packages()
    use = Use((0, n_rows, n_cols))
    if policy is not None:
        words = {"images": "graph has", "size": "export its size"}
        check_matrix(policy, use.shape, **words)
        warn(policy_notes([(type(policy).__name__, policy)], reconstructor, use))
    warn([] if reconstructor is None else network_notes(reconstructor, use))
    reconstructor = reconstructor and reconstructor.cpu().eval()
    policy = policy and policy.cpu().eval()
    measured = Measurement.of(*_slices(1, 2, n_rows, n_cols, 0))
    has_maps = reconstructor is not None and reconstructor.calibrate(measured) is not None
    graph = Graph(reconstructor, policy, has_maps=has_maps)
    model = _traced(graph, n_rows, n_cols)
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    facts = _checked(session, graph, n_rows, n_cols, n_checked)
    entry = model.metadata_props.add()
    entry.key, entry.value = "kscout", json.dumps(asdict(facts))
    onnx.checker.check_model(model)
    with written_whole(out) as aside:
        aside.write_bytes(model.SerializeToString())
    return facts


def onnx_packages() -> tuple[ModuleType, ModuleType]:
    """Return `onnx` and `onnxruntime`, without onnxruntime's identity file in the home folder.

    It is written at import; a later call that disables telemetry comes too late.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    with needs_extra("ONNX", "onnx"):
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 - torch's exporter needs it
    return onnx, onnxruntime


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the exporter's warnings about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), compiled_kernels(enabled=False), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _traced(graph: Graph, n_rows: int, n_cols: int) -> Any:  # noqa: ANN401 - a ModelProto
    batch, coil = torch.export.Dim("batch"), torch.export.Dim("coil")
    try:
        given = _example(graph, 2, 3, n_rows, n_cols, 0).inputs
        shapes = {k: {0: batch, 1: coil} if x.ndim == 5 else {0: batch} for k, x in given.items()}
        with _quietly():
            # Run first, so that the exporter, which takes long, finds cached constants.
            graph(**given)
            program = torch.onnx.export(
                graph,
                kwargs=given,
                dynamo=True,
                opset_version=OPSET,
                verbose=False,
                input_names=graph.inputs,
                output_names=graph.outputs,
                dynamic_shapes=shapes,
            )
    except Exception as error:  # the exporter wraps any exception of a network
        parts = [type(x).__name__ for x in (graph.reconstructor, graph.policy) if x is not None]
        raise ConfigError(
            f"{' and '.join(parts)} cannot be exported for {n_rows}x{n_cols} images: "
            f"{_cause(error, is_alone=graph.reconstructor is None)}"
        ) from error
    assert program is not None
    return program.model_proto


def _cause(error: Exception, *, is_alone: bool) -> str:
    without = "use another operator" if is_alone else "use another one, or export only a policy"
    if isinstance(error, MissingOperatorError):
        return (
            f"the operator {error} of complex tensors has no counterpart in ONNX; compute it from "
            "real and imaginary parts (torch.view_as_real), or leave out the reconstruction"
        )
    reason = " ".join(str(error).split())[:300]
    return f"{reason}; if this names an operator, {without}; otherwise try another size"


def _checked(
    session: Any,  # noqa: ANN401 - of onnxruntime
    graph: Graph,
    n_rows: int,
    n_cols: int,
    n_checked: int,
) -> Exported:
    """Compare with the arithmetic of kscout, and raise an error for differences."""
    errors: dict[str, list[Tensor]] = {name: [torch.zeros(())] for name in ("image", "scores")}
    # A network may not depend on all inputs.
    known, n_same = {one.name for one in session.get_inputs()}, 0
    for begin in range(0, n_checked, _N_TOGETHER):
        n_batch, n_coils = min(_N_TOGETHER, n_checked - begin), 1 + begin // _N_TOGETHER % 3
        example = _example(graph, n_batch, n_coils, n_rows, n_cols, begin + 1)
        given = {name: x.numpy() for name, x in example.inputs.items() if name in known}
        answers = map(torch.from_numpy, session.run(None, given))
        for (name, expected), found in zip(example.expected.items(), answers, strict=True):
            errors[name].append(((found - expected).flatten(1) / example.unit[name]).abs().max())
            if name == "scores":
                n_same += _n_same_choices(found, expected, example.inputs["mask"])
    image_error, score_error = (float(torch.stack(each).max()) for each in errors.values())
    if not max(image_error, score_error) <= TOLERANCE:
        raise RunError(
            f"onnxruntime's images differ by {image_error:.1e} and its scores by {score_error:.1e} "
            f"from torch's, more than {TOLERANCE:g}; nothing was written"
        )
    reconstructor, policy = graph.reconstructor, graph.policy
    return Exported(
        __version__,
        OPSET,
        n_rows,
        n_cols,
        None if reconstructor is None else fingerprint(reconstructor),
        None if policy is None else fingerprint(policy),
        n_checked,
        None if reconstructor is None else image_error,
        None if policy is None else score_error,
        None if policy is None else n_same,
    )


def _n_same_choices(
    found: Float[Tensor, "batch col"],
    expected: Float[Tensor, "batch col"],
    mask: Bool[Tensor, "batch col"],
) -> int:
    """Count slices with the same best column; raise an error for others, except for ties."""
    found, expected = (scores.masked_fill(mask, -torch.inf) for scores in (found, expected))
    same, best = found.argmax(-1) == expected.argmax(-1), expected.topk(2).values
    if (~same & (best[:, 0] - best[:, 1] > TOLERANCE)).any():
        raise RunError("onnxruntime selects other columns than torch; nothing was written")
    return int(same.sum())


@final
@dataclass(frozen=True)
class _Example:
    """Slices for the comparison of two runtimes."""

    inputs: dict[str, Tensor]
    expected: dict[str, Tensor]
    """Outputs of torch."""
    unit: dict[str, Tensor]
    """Units of errors: normalized images, in which errors of all slices are comparable."""


@torch.no_grad()
def _example(
    graph: Graph, n_batch: int, n_coils: int, n_rows: int, n_cols: int, seed: int
) -> _Example:
    kspace, mask = _slices(n_batch, n_coils, n_rows, n_cols, seed)
    step = torch.arange(n_batch)
    n_left = 1 + step.flip(0)
    measured, reconstructor = Measurement.of(kspace, mask), graph.reconstructor or ZeroFilled()
    maps = reconstructor.calibrate(measured)
    found = reconstructor.reconstruct(replace(measured, maps=maps))
    every: dict[str, Tensor | None] = {
        "kspace": torch.view_as_real(kspace),
        "mask": mask,
        "maps": None if maps is None else torch.view_as_real(maps.resolve_conj()),
        "step": step,
        "n_left": n_left,
        "image": found.image,
        "mean": found.mean,
        "std": found.std,
    }
    inputs = {name: x for name in graph.inputs if (x := every[name]) is not None}
    outputs = {"image": denormalize(found.image, found.mean, found.std)}
    if graph.policy is not None:
        given = (graph.policy, found, measured.zero_filled, mask)
        outputs["scores"] = graph.policy(shown_to(*given, step=step, n_left=n_left))
    expected = {name: outputs[name] for name in graph.outputs}
    return _Example(inputs, expected, {"image": found.std[:, None], "scores": torch.ones(1)})


def _slices(
    n_batch: int, n_coils: int, n_rows: int, n_cols: int, seed: int
) -> tuple[Complex[Tensor, "batch coil row col"], Bool[Tensor, "batch col"]]:
    """Sample k-space of smooth complex images, and masks that contain the center."""
    generator = keyed_generator("onnx", seed)
    # For real images some networks would normalize an imaginary part of rounding errors.
    parts = torch.randn(2, n_batch, n_coils, n_rows, n_cols, generator=generator)
    image = torch.complex(*(0.5 + parts)).cumsum(dim=-1)
    mask = torch.rand(n_batch, n_cols, generator=generator) < 0.3
    return fft2c(image), mask | center_mask(n_cols, min(n_cols, LEAST_CENTRAL))
