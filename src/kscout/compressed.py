"""Compressed weights (xz), which are decompressed in memory, never on disk.

Compression is lossless and reduces 16-bit numbers by about a sixth.
"""

import hashlib
import lzma
from functools import cache
from pathlib import Path
from typing import Any

from kscout.errors import WeightsError

SUFFIX = ".xz"
MOST_BYTES = 2**28
"""Limit of the decompressed size: a small file could otherwise fill all memory."""
_MOST_MEMORY = 2**27
"""Memory limit of the decompressor; `xz -9` needs half of it."""
_MAGIC = b"\xfd7zXZ\x00"
# For numbers of two bytes: the lower and the upper one (sign and exponent) are predicted apart.
_FILTERS: list[dict[str, Any]] = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 1, "pb": 0}]


def compressed(content: bytes) -> bytes:
    """Return bytes in compressed form."""
    return lzma.compress(content, format=lzma.FORMAT_XZ, filters=_FILTERS)


def is_compressed(path: Path) -> bool:
    """Return whether a file starts with the magic bytes of xz."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def unpacked(path: Path, n_bytes: int | None = None) -> bytes:
    """Return the decompressed content of a file, or its first bytes."""
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_MEMORY)
    parts, n_left = [], MOST_BYTES + 1 if n_bytes is None else n_bytes
    with path.open("rb") as file:
        while n_left and not decoder.eof:
            piece = file.read(2**16) if decoder.needs_input else b""
            if decoder.needs_input and not piece:
                raise _damaged(path, "it is truncated")
            try:
                parts.append(decoder.decompress(piece, n_left))
            except lzma.LZMAError as error:
                raise _damaged(path, str(error)) from error
            n_left -= len(parts[-1])
        if n_bytes is None and not n_left:
            raise WeightsError(
                f"{path} unpacks to more than {MOST_BYTES:,} bytes, the limit for compressed "
                "weights; unpack it by `xz -d` and give the plain file"
            )
        if n_bytes is None and (decoder.unused_data or file.read(1)):
            raise _damaged(path, "it has additional bytes at its end")
    return b"".join(parts)


def _damaged(path: Path, reason: str) -> WeightsError:
    return WeightsError(
        f"{path} is not a complete safetensors file ({reason}); copy or train it again"
    )


def plain_checksum(path: Path) -> str:
    """Return the SHA-256 of a file's content, independent of compression."""
    if is_compressed(path):
        facts = path.stat()
        return _unpacked_checksum(path, facts.st_mtime_ns, facts.st_size)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Cached: a campaign calls it for each evaluation, and decompression takes half a second.
@cache
def _unpacked_checksum(path: Path, _changed_ns: int, _n_bytes: int) -> str:
    return hashlib.sha256(unpacked(path)).hexdigest()


def plain_stem(path: Path) -> str:
    """Return a file's name without the suffixes of its format, compressed or not."""
    return Path(path.name.removesuffix(SUFFIX)).stem
