"""Weights that lie compressed (xz): read in memory, never unpacked to disk.

Numbers of 16 bit lose about a sixth of their bytes so, and come back as they were.
"""

import hashlib
import lzma
from functools import cache
from pathlib import Path
from typing import Any

from kscout.errors import WeightsError

SUFFIX = ".xz"
MOST_BYTES = 2**28
"""What a file may unpack to, far above any network here: a small one could fill all memory."""
_MOST_MEMORY = 2**27
"""What unpacking itself may take; `xz -9` asks for half of it."""
_MAGIC = b"\xfd7zXZ\x00"
# For numbers of two bytes: the upper one, with sign and exponent, is foretold apart from the lower.
_FILTERS: list[dict[str, Any]] = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 3, "lp": 1, "pb": 1}]


def compressed(content: bytes) -> bytes:
    """Return bytes as a compressed file holds them."""
    return lzma.compress(content, format=lzma.FORMAT_XZ, filters=_FILTERS)


def is_compressed(path: Path) -> bool:
    """Say whether a file's first bytes are those of a compressed one."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def unpacked(path: Path, n_bytes: int | None = None) -> bytes:
    """Return what a compressed file holds: all of it, or the first bytes."""
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_MEMORY)
    parts, n_left = [], MOST_BYTES + 1 if n_bytes is None else n_bytes
    with path.open("rb") as file:
        while n_left and not decoder.eof:
            piece = file.read(2**16) if decoder.needs_input else b""
            if decoder.needs_input and not piece:
                raise _damaged(path, "it ends too early")
            try:
                parts.append(decoder.decompress(piece, n_left))
            except lzma.LZMAError as error:
                raise _damaged(path, str(error)) from error
            n_left -= len(parts[-1])
        if n_bytes is None and not n_left:
            raise WeightsError(
                f"{path} unpacks to more than {MOST_BYTES:,} bytes, the most that compressed "
                "weights may have; unpack it by `xz -d` and give the plain file"
            )
        if n_bytes is None and (decoder.unused_data or file.read(1)):
            raise _damaged(path, "something follows after its end")
    return b"".join(parts)


def _damaged(path: Path, reason: str) -> WeightsError:
    return WeightsError(
        f"{path} is not a whole safetensors file ({reason}); copy or train it again"
    )


def plain_checksum(path: Path) -> str:
    """Return the SHA-256 of what a file holds, the same whether it lies compressed or not."""
    if is_compressed(path):
        facts = path.stat()
        return _unpacked_checksum(path, facts.st_mtime_ns, facts.st_size)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# A campaign asks once for each evaluation, and unpacking takes half a second.
@cache
def _unpacked_checksum(path: Path, _changed_ns: int, _n_bytes: int) -> str:
    return hashlib.sha256(unpacked(path)).hexdigest()


def plain_stem(path: Path) -> str:
    """Return a file's name without what tells its format, compressed or not."""
    return Path(path.name.removesuffix(SUFFIX)).stem
