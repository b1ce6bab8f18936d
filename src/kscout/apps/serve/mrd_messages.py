"""Messages of the ISMRMRD streaming protocol: encoding, decoding and size limits.

A message is a number of two bytes followed by its content, all little-endian. Sizes that a message
declares are compared with a limit before anything is read or allocated.
"""

import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import final

import numpy as np
from jaxtyping import Complex64, Float
from numpy.lib.recfunctions import assign_fields_by_name

from kscout.errors import DataError

ReadExactly = Callable[[int], Awaitable[bytes]]
"""Returns the given number of bytes of a stream; raises an error if the stream ends before."""

Record = np.void | np.ndarray
"""One record of named fields."""

MOST_TEXT = 2**20
"""Largest number of bytes of a text."""
_FILE_NAME = 1024
"""Bytes of the name of a configuration, padded with zeros."""


class Id(IntEnum):
    """Numbers of the messages that kscout supports."""

    CONFIG_FILE = 1
    CONFIG_TEXT = 2
    HEADER = 3
    CLOSE = 4
    TEXT = 5
    ACQUISITION = 1008
    IMAGE = 1022
    WAVEFORM = 1026


_COUNTERS = [
    *("kspace_encode_step_1", "kspace_encode_step_2", "average", "slice", "contrast"),
    *("phase", "repetition", "set", "segment"),
]
_POSITION = [
    (name, "<f4", 3)
    for name in ("position", "read_dir", "phase_dir", "slice_dir", "patient_table_position")
]
_USER = [("user_int", "<i4", 8), ("user_float", "<f4", 8)]
ACQUISITION_HEAD = np.dtype(
    [
        *(("version", "<u2"), ("flags", "<u8"), ("measurement_uid", "<u4")),
        *(("scan_counter", "<u4"), ("acquisition_time_stamp", "<u4")),
        ("physiology_time_stamp", "<u4", 3),
        *(("number_of_samples", "<u2"), ("available_channels", "<u2"), ("active_channels", "<u2")),
        ("channel_mask", "<u8", 16),
        *(("discard_pre", "<u2"), ("discard_post", "<u2"), ("center_sample", "<u2")),
        *(("encoding_space_ref", "<u2"), ("trajectory_dimensions", "<u2")),
        ("sample_time_us", "<f4"),
        *_POSITION,
        ("idx", [*((name, "<u2") for name in _COUNTERS), ("user", "<u2", 8)]),
        *_USER,
    ]
)
IMAGE_HEAD = np.dtype(
    [
        *(("version", "<u2"), ("data_type", "<u2"), ("flags", "<u8"), ("measurement_uid", "<u4")),
        *(("matrix_size", "<u2", 3), ("field_of_view", "<f4", 3), ("channels", "<u2")),
        *_POSITION,
        *((name, "<u2") for name in ("average", "slice", "contrast", "phase", "repetition", "set")),
        *(("acquisition_time_stamp", "<u4"), ("physiology_time_stamp", "<u4", 3)),
        *(("image_type", "<u2"), ("image_index", "<u2"), ("image_series_index", "<u2")),
        *_USER,
        ("attribute_string_len", "<u4"),
    ]
)
_WAVEFORM_HEAD = 40
_WAVEFORM_SIZES = 28
"""Offset of the numbers of samples and channels in the head of a waveform."""
_FLOAT, _MAGNITUDE = 5, 1
"""Codes in the head of an image: 32-bit floats, and magnitude."""


@final
@dataclass(frozen=True, eq=False)
class Message:
    """A received message; the samples of a waveform are skipped."""

    id: Id
    text: str = ""
    head: Record = field(default_factory=lambda: np.void(b""))
    """The head of an acquisition or an image."""
    values: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.complex64))
    """Coil x sample for an acquisition, row x column for an image."""


async def read_message(read: ReadExactly, n_bytes: int, begin: bytes = b"") -> Message:
    """Return the next message.

    Acquisitions, images and waveforms have at most `n_bytes`; `begin` is the first byte of the
    message, if it was read already.
    """
    (number,) = struct.unpack("<H", begin + await read(2 - len(begin)))
    if number not in set(Id):
        raise DataError(
            f"a message has the number {number}; supported are {', '.join(map(str, sorted(Id)))}"
        )
    kind = Id(number)
    if kind is Id.CLOSE:
        return Message(kind)
    if kind is Id.ACQUISITION:
        return await _read_acquisition(read, n_bytes)
    if kind is Id.IMAGE:
        return await _read_image(read, n_bytes)
    if kind is Id.WAVEFORM:
        head = await read(_WAVEFORM_HEAD)
        n_samples, n_channels = struct.unpack_from("<HH", head, _WAVEFORM_SIZES)
        await read(_bounded(4 * n_samples * n_channels, n_bytes, "a waveform"))
        return Message(kind)
    if kind is Id.CONFIG_FILE:
        return Message(kind, _text(await read(_FILE_NAME)))
    (length,) = struct.unpack("<I", await read(4))
    return Message(kind, _text(await read(_bounded(length, MOST_TEXT, "a text"))))


def text_message(kind: Id, text: str) -> bytes:
    """Return the bytes of a text, a header or a configuration."""
    raw = text.encode()
    return struct.pack("<HI", kind, len(raw)) + raw


def close_message() -> bytes:
    """Return the bytes of the message that ends a stream."""
    return struct.pack("<H", Id.CLOSE)


def acquisition_message(head: Record, values: Complex64[np.ndarray, "coil sample"]) -> bytes:
    """Return the bytes of an acquisition."""
    full = np.zeros((), dtype=ACQUISITION_HEAD)
    assign_fields_by_name(full, np.asarray(head), zero_unassigned=False)
    full["active_channels"], full["number_of_samples"] = values.shape
    full["trajectory_dimensions"] = 0
    return struct.pack("<H", Id.ACQUISITION) + full.tobytes() + values.astype("<c8").tobytes()


def image_message(
    image: Float[np.ndarray, "row col"], attributes: str, like: Record, **fields: object
) -> bytes:
    """Return the bytes of a magnitude image, whose rows run along the readout.

    Position and counters are those of `like`, the head of an acquisition of the same slice;
    `fields` are other fields of the head, and `attributes` metadata as XML.
    """
    head, raw = np.zeros((), dtype=IMAGE_HEAD), attributes.encode()
    assign_fields_by_name(head, np.asarray(like), zero_unassigned=False)
    assign_fields_by_name(head, np.asarray(like["idx"]), zero_unassigned=False)
    head["version"], head["flags"], head["user_int"], head["user_float"] = 1, 0, 0, 0
    head["data_type"], head["image_type"], head["channels"] = _FLOAT, _MAGNITUDE, 1
    head["matrix_size"], head["attribute_string_len"] = (*image.shape, 1), len(raw)
    for name, value in fields.items():
        head[name] = value
    # The readout is the axis that runs fastest.
    data = np.ascontiguousarray(image.T, dtype="<f4").tobytes()
    start = struct.pack("<H", Id.IMAGE) + head.tobytes()
    return start + struct.pack("<Q", len(raw)) + raw + data


async def _read_acquisition(read: ReadExactly, n_bytes: int) -> Message:
    head = np.frombuffer(await read(ACQUISITION_HEAD.itemsize), ACQUISITION_HEAD)[0]
    n_coils, n_samples = int(head["active_channels"]), int(head["number_of_samples"])
    n_path = 4 * n_samples * int(head["trajectory_dimensions"])
    n_data = 8 * n_coils * n_samples
    raw = await read(_bounded(n_path + n_data, n_bytes, "an acquisition"))
    values = np.frombuffer(raw, "<c8", offset=n_path).reshape(n_coils, n_samples)
    before, after = int(head["discard_pre"]), int(head["discard_post"])
    samples = values[:, before : max(before, n_samples - after)]
    # A copy: a view would keep the discarded samples in memory.
    return Message(Id.ACQUISITION, "", head, samples.copy())


async def _read_image(read: ReadExactly, n_bytes: int) -> Message:
    head = np.frombuffer(await read(IMAGE_HEAD.itemsize), IMAGE_HEAD)[0]
    (length,) = struct.unpack("<Q", await read(8))
    text = _text(await read(_bounded(length, MOST_TEXT, "the attributes of an image")))
    n_rows, n_cols, n_depth = (int(size) for size in head["matrix_size"])
    if (head["data_type"], head["channels"], n_depth) != (_FLOAT, 1, 1):
        raise DataError(
            f"an image has values of kind {head['data_type']}, {head['channels']} channels and "
            f"{n_depth} slices; send floats ({_FLOAT}) of one channel and one slice"
        )
    raw = await read(_bounded(4 * n_rows * n_cols, n_bytes, "an image"))
    return Message(Id.IMAGE, text, head, np.frombuffer(raw, "<f4").reshape(n_cols, n_rows).T)


def _bounded(n_bytes: int, most: int, what: str) -> int:
    if n_bytes > most:
        raise DataError(f"{what} declares {n_bytes} bytes; at most {most} are accepted")
    return n_bytes


def _text(raw: bytes) -> str:
    try:
        return raw.rstrip(b"\0").decode()
    except UnicodeDecodeError as error:
        raise DataError("a text is not UTF-8; encode it so") from error
