"""Small MRD (ISMRMRD) files, written by h5py alone."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from coil_data import coil_kspace

N_ROWS, N_COLS, N_COILS = 16, 11, 3
KSPACE = coil_kspace(2, N_COILS, N_ROWS, N_COLS, noise=0.01).numpy()
COUNTERS = ("kspace_encode_step_1", "kspace_encode_step_2", "average", "slice", "contrast")
COUNTERS += ("phase", "repetition", "set", "segment")
HEAD = np.dtype(
    [
        *(("version", "<u2"), ("flags", "<u8"), ("number_of_samples", "<u2")),
        *(("active_channels", "<u2"), ("discard_pre", "<u2"), ("discard_post", "<u2")),
        *(("center_sample", "<u2"), ("encoding_space_ref", "<u2")),
        ("idx", [(name, "<u2") for name in COUNTERS]),
    ]
)
"""The fields of an acquisition's head that kscout reads, and some more."""
FLOATS = h5py.vlen_dtype(np.dtype("<f4"))

NOISE, REVERSED, PHASE_CORRECTION, FEEDBACK, CALIBRATION = (
    1 << (number - 1) for number in (19, 22, 24, 28, 20)
)


def encoding(trajectory: str = "cartesian", center: int | None = N_COLS // 2, z: int = 1) -> str:
    limits = (
        ""
        if center is None
        else "<encodingLimits><kspace_encoding_step_1><minimum>0</minimum>"
        f"<maximum>{N_COLS - 1}</maximum><center>{center}</center></kspace_encoding_step_1>"
        "</encodingLimits>"
    )
    return f"""<encoding><encodedSpace>
<matrixSize><x>{N_ROWS}</x><y>{N_COLS}</y><z>{z}</z></matrixSize>
<fieldOfView_mm><x>320</x><y>110</y><z>5</z></fieldOfView_mm></encodedSpace>
<reconSpace><matrixSize><x>8</x><y>11</y><z>1</z></matrixSize>
<fieldOfView_mm><x>160</x><y>110</y><z>5</z></fieldOfView_mm></reconSpace>
{limits}<trajectory>{trajectory}</trajectory></encoding>"""


def header(*encodings: str) -> str:
    return (
        '<?xml version="1.0"?><ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD">'
        "<measurementInformation><protocolName>gre</protocolName></measurementInformation>"
        f"{''.join(encodings or (encoding(),))}</ismrmrdHeader>"
    )


class Line(NamedTuple):
    """An acquisition: its head, and what it measured, coil x sample."""

    head: np.ndarray
    values: np.ndarray


def line(values: np.ndarray, flags: int = 0, **more: int) -> Line:
    """Build an acquisition; `more` are fields of its head and counters."""
    head = np.zeros((), dtype=HEAD)
    head["flags"] = flags
    head["active_channels"], head["number_of_samples"] = values.shape
    head["center_sample"] = more.pop("center", values.shape[1] // 2)
    for name, value in more.items():
        (head["idx"] if name in COUNTERS else head)[name] = value
    return Line(head, values)


def lines(kspace: np.ndarray = KSPACE, **more: int) -> Iterator[Line]:
    """Measure column after column, and slices in turn."""
    for column in range(kspace.shape[-1]):
        for number, image in enumerate(kspace):
            yield line(image[:, :, column], kspace_encode_step_1=column, slice=number, **more)


def write(path: Path, rows: Iterable[Line], xml: str | None = None, group: str = "dataset") -> Path:
    """Write an MRD file; an empty header is left out."""
    rows = list(rows)
    stored = np.empty(len(rows), dtype=[("head", HEAD), ("traj", FLOATS), ("data", FLOATS)])
    for number, row in enumerate(rows):
        stored["head"][number] = row.head
        stored["traj"][number] = np.zeros(0, dtype="<f4")
        stored["data"][number] = np.ascontiguousarray(row.values, "<c8").view("<f4").ravel()
    with h5py.File(path, "w") as file:
        file.create_dataset(f"{group}/data", data=stored, chunks=(1,), maxshape=(None,))
        if xml is None or xml:
            file[f"{group}/xml"] = [header() if xml is None else xml]
    return path
