"""Networks for other runtimes: from measured k-space and mask to image and scores, as ONNX.

K-space comes as pairs of real and imaginary parts, as ONNX has no complex numbers. Exported is what
looks at the magnitude of the zero-filled image: the paper's networks. torch's exporter has no words
for most operations on complex numbers, which other networks are made of.
"""

import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from kscout import __version__
from kscout.acquisition.state import shown_to
from kscout.core import Measurement, Observation, Policy, Reconstruction, Reconstructor
from kscout.errors import ConfigError, RunError
from kscout.files import written_whole
from kscout.kernels.registry import compiled_kernels
from kscout.physics.fourier import fft2c, ifft2c
from kscout.physics.normalization import denormalize
from kscout.randomness import keyed_generator
from kscout.weights import fingerprint

OPSET = 20
TOLERANCE = 1e-4
"""How far images (in deviations of the zero-filled image) and scores may lie from torch's."""
_N_TOGETHER = 4


@final
@dataclass(frozen=True)
class Exported:
    """What a file says about itself, in its metadata under the key `kscout`."""

    kscout: str
    opset: int
    n_rows: int
    n_cols: int
    reconstructor: str
    policy: str | None
    """Fingerprints of the weights."""
    n_checked: int
    """Slices on which onnxruntime was compared with torch."""
    image_error: float
    score_error: float | None
    """The largest ones found, in the units of `TOLERANCE`."""
    n_same_choices: int | None
    """Slices where the best column was the same."""


@final
class MagnitudeGraph(nn.Module):
    """From k-space as real pairs, and a mask, to the image in its own units and scores.

    Args:
        reconstructor: looks at the magnitude alone.
        policy: looks at the image alone; none where not given.
    """

    def __init__(self, reconstructor: Reconstructor, policy: Policy | None) -> None:
        super().__init__()
        self.reconstructor, self.policy = reconstructor, policy

    def forward(
        self, kspace: Float[Tensor, "batch coil row col 2"], mask: Bool[Tensor, "batch col"]
    ) -> tuple[Tensor, ...]:
        measured = kspace * mask[:, None, None, :, None]
        pairs = torch.view_as_real(ifft2c(torch.view_as_complex(measured)))
        magnitude = pairs.square().sum(dim=(1, 4)).sqrt()
        mean = magnitude.mean(dim=(-2, -1))
        # Written out: the exporter has no unbiased deviation over two axes.
        n_others = magnitude.shape[-2] * magnitude.shape[-1] - 1
        squares = (magnitude - mean[:, None, None]).square()
        std = (squares.sum(dim=(-2, -1)) / n_others).sqrt()
        # Nobody may look at the complex image here; the check finds whoever does.
        nothing = torch.full((1, 1, 1, 1), torch.nan)
        found = self.reconstructor.reconstruct(
            Measurement(nothing, mask, summary=(magnitude, mean, std))
        )
        image = denormalize(found.image, found.mean, found.std)
        if self.policy is None:
            return (image,)
        return image, self.policy(Observation(image=found.image, mask=mask))


def export_onnx(
    out: Path,
    reconstructor: Reconstructor,
    policy: Policy | None,
    *,
    n_rows: int,
    n_cols: int,
    n_checked: int = 100,
) -> Exported:
    """Write a network as ONNX for one image size, any batch and number of coils, and check it.

    Args:
        out: the file, which appears whole once onnxruntime agrees with torch.
        reconstructor: one that looks at the magnitude of the zero-filled image.
        policy: one that looks at the reconstruction.
        n_rows: of the images.
        n_cols: of the images.
        n_checked: drawn slices on which both are compared.
    """
    if policy is not None and (policy.needs_measurement or policy.needs_target):
        raise ConfigError(
            f"{type(policy).__name__} looks at more than the image, which is not exported; export "
            "the paper's network (conv), or the reconstruction alone"
        )
    onnx, runtime = onnx_packages()
    graph = MagnitudeGraph(
        reconstructor.cpu().eval(), None if policy is None else policy.cpu().eval()
    )
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


def onnx_packages() -> tuple[Any, Any]:
    """Return `onnx` and `onnxruntime`, which is kept from writing an identity into the home folder.

    It does so when it is imported; turning its telemetry off by a call comes too late.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ImportError as error:
        raise ConfigError(
            f"ONNX needs packages that are not installed ({error}); install kscout[onnx]"
        ) from error
    return onnx, onnxruntime


@contextmanager
def _quietly() -> Iterator[None]:
    """Leave out what the exporter says about packages that nobody needs."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), compiled_kernels(enabled=False), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _traced(graph: MagnitudeGraph, n_rows: int, n_cols: int) -> Any:  # noqa: ANN401 - a ModelProto
    kspace, mask = _drawn(2, 3, n_rows, n_cols, 0)
    given = (torch.view_as_real(kspace), mask)
    batch, coil = torch.export.Dim("batch"), torch.export.Dim("coil")
    try:
        with _quietly():
            # Before the exporter, which takes long: whoever looks at the complex image fails here.
            if not all(bool(x.isfinite().all()) for x in graph(*given)):
                raise ValueError("it looks at the complex image")
            program = torch.onnx.export(
                graph,
                given,
                dynamo=True,
                opset_version=OPSET,
                verbose=False,
                input_names=["kspace", "mask"],
                output_names=["image"] if graph.policy is None else ["image", "scores"],
                dynamic_shapes=({0: batch, 1: coil}, {0: batch}),
            )
    except Exception as error:  # the exporter wraps whatever a network raises
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{type(graph.reconstructor).__name__} cannot be exported for {n_rows}x{n_cols} images "
            f"({reason}); networks that look at the magnitude can, such as the paper's U-Net"
        ) from error
    assert program is not None
    return program.model_proto


def _checked(
    session: Any,  # noqa: ANN401 - of onnxruntime
    graph: MagnitudeGraph,
    n_rows: int,
    n_cols: int,
    n_checked: int,
) -> Exported:
    """Compare with the arithmetic that kscout uses, and refuse what differs."""
    image_error, score_error, n_same = 0.0, 0.0, 0
    for begin in range(0, n_checked, _N_TOGETHER):
        n_batch = min(_N_TOGETHER, n_checked - begin)
        kspace, mask = _drawn(n_batch, 1 + begin // _N_TOGETHER % 3, n_rows, n_cols, begin + 1)
        pairs = torch.view_as_real(kspace).numpy()
        image, *scores = session.run(None, {"kspace": pairs, "mask": mask.numpy()})
        found, expected = _expected(graph, kspace, mask)
        # Scaled back to normalized units, in which errors of all slices are alike.
        difference = torch.from_numpy(image) - denormalize(found.image, found.mean, found.std)
        image_error = max(image_error, float((difference / found.std[:, None, None]).abs().max()))
        if expected is None:
            continue
        other = torch.from_numpy(scores[0])
        score_error = max(score_error, float((other - expected).abs().max()))
        same = other.masked_fill(mask, -torch.inf).argmax(-1) == expected.masked_fill(
            mask, -torch.inf
        ).argmax(-1)
        best = expected.masked_fill(mask, -torch.inf).topk(2).values
        if (~same & (best[:, 0] - best[:, 1] > TOLERANCE)).any():
            raise RunError("onnxruntime chooses other columns than torch; nothing was written")
        n_same += int(same.sum())
    if not max(image_error, score_error) <= TOLERANCE:
        raise RunError(
            f"onnxruntime's images differ by {image_error:.1e} and its scores by {score_error:.1e} "
            f"from torch's, more than {TOLERANCE:g}; nothing was written"
        )
    policy = graph.policy
    return Exported(
        __version__,
        OPSET,
        n_rows,
        n_cols,
        fingerprint(graph.reconstructor),
        None if policy is None else fingerprint(policy),
        n_checked,
        image_error,
        None if policy is None else score_error,
        None if policy is None else n_same,
    )


@torch.no_grad()
def _expected(
    graph: MagnitudeGraph, kspace: Tensor, mask: Tensor
) -> tuple[Reconstruction, Tensor | None]:
    measured = Measurement.of(kspace, mask)
    found = graph.reconstructor.reconstruct(measured)
    if graph.policy is None:
        return found, None
    given = (graph.policy, found, measured.zero_filled, mask)
    return found, graph.policy(shown_to(*given, step=0, n_left=None))


def _drawn(
    n_batch: int, n_coils: int, n_rows: int, n_cols: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Draw k-space of smooth images, and masks that hold the center."""
    generator = keyed_generator("onnx", seed)
    image = torch.rand(n_batch, n_coils, n_rows, n_cols, generator=generator).cumsum(dim=-1)
    mask = torch.rand(n_batch, n_cols, generator=generator) < 0.3
    mask[:, n_cols // 2] = True
    return fft2c(image), mask
