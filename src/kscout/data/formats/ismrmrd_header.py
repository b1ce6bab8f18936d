"""ISMRMRD's XML header, also in fastMRI's files: sizes, fields of view, limits."""

from typing import NamedTuple
from xml.etree import ElementTree

_LARGEST = 2**24
"""Largest number of characters in a header."""


class Space(NamedTuple):
    """A matrix and the field of view that it covers, along readout and first phase encoding."""

    matrix: tuple[int, int]
    field_of_view_mm: tuple[float, float]

    @property
    def spacing_mm(self) -> tuple[float, float]:
        rows, cols = (
            length / max(count, 1)
            for length, count in zip(self.field_of_view_mm, self.matrix, strict=True)
        )
        return rows, cols


class Encoding(NamedTuple):
    """Encoding of one part of a measurement."""

    encoded: Space | None
    """None if the header does not specify it; the same applies to `reconstructed`."""
    reconstructed: Space | None
    n_depth: int
    """Length of the second phase encoding."""
    trajectory: str
    center: int | None
    """The line of the first phase encoding at the center of k-space."""
    lines: tuple[int, int] | None = None
    """The first and the last line of the first phase encoding; None if unspecified."""

    @property
    def n_readout(self) -> int | None:
        """Number of rows without the readout's oversampling; None if unspecified."""
        if self.encoded is None or self.reconstructed is None:
            return None
        full, kept = (space.field_of_view_mm[0] for space in (self.encoded, self.reconstructed))
        n_rows = self.encoded.matrix[0]
        return n_rows if not 0 < kept < full else max(1, round(n_rows * kept / full))


class Header(NamedTuple):
    """The parts of a header that kscout uses."""

    encodings: list[Encoding]
    protocol: str
    """Name of the measurement; empty if unspecified."""


def read_header(text: str | bytes) -> Header:
    """Parse a header; exceptions of the parser are not converted."""
    if len(text) > _LARGEST:
        raise ValueError(f"its header has {len(text)} characters")
    if b"<!DOCTYPE" in (text if isinstance(text, bytes) else text.encode()):
        raise ValueError("its header declares a document type")
    root = ElementTree.fromstring(text)
    protocol = root.findtext("{*}measurementInformation/{*}protocolName") or ""
    return Header([_encoding(part) for part in root.findall("{*}encoding")], protocol.strip())


def _encoding(part: ElementTree.Element) -> Encoding:
    limits = "{*}encodingLimits/{*}kspace_encoding_step_1/{*}"
    first, last, center = (
        int(text) if (text := part.findtext(limits + name)) and text.strip() else None
        for name in ("minimum", "maximum", "center")
    )
    return Encoding(
        _space(part, "encodedSpace"),
        _space(part, "reconSpace"),
        int(part.findtext("{*}encodedSpace/{*}matrixSize/{*}z") or 1),
        (part.findtext("{*}trajectory") or "cartesian").strip().lower(),
        center,
        None if first is None or last is None else (first, last),
    )


def _space(part: ElementTree.Element, name: str) -> Space | None:
    if part.find(f"{{*}}{name}") is None:
        return None

    x, y, width, height = (
        part.findtext(f"{{*}}{name}/{{*}}{of}/{{*}}{axis}") or ""
        for of in ("matrixSize", "fieldOfView_mm")
        for axis in ("x", "y")
    )
    return Space((int(x), int(y)), (float(width or "nan"), float(height or "nan")))
