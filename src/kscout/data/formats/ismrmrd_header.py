"""ISMRMRD's XML header, which fastMRI's files have, too: sizes, fields of view, limits."""

from typing import NamedTuple
from xml.etree import ElementTree

_LARGEST = 2**24
"""Characters that a header may have."""


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
    """How one part of a measurement is encoded."""

    encoded: Space | None
    """None where the header does not tell it; likewise the next."""
    reconstructed: Space | None
    n_depth: int
    """Length of the second phase encoding."""
    trajectory: str
    center: int | None
    """The line of the first phase encoding that is the center of k-space."""
    lines: tuple[int, int] | None = None
    """The first and the last line of the first phase encoding, where the header tells them."""

    @property
    def n_readout(self) -> int | None:
        """Rows that are left without the readout's oversampling; None where that is not told."""
        if self.encoded is None or self.reconstructed is None:
            return None
        whole, kept = (space.field_of_view_mm[0] for space in (self.encoded, self.reconstructed))
        n_rows = self.encoded.matrix[0]
        return n_rows if not 0 < kept < whole else max(1, round(n_rows * kept / whole))


class Header(NamedTuple):
    """What kscout reads of a header."""

    encodings: list[Encoding]
    protocol: str
    """The name of the measurement; empty where it has none."""


def read_header(text: str | bytes) -> Header:
    """Read a header; raises whatever is wrong with it."""
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
