"""Trained weights that come with the package, found by name, each with a card.

The files are read by `kscout.policies.load` and `kscout.reconstruction.load`: this table only says
where they lie, so that both may use it.
"""

from pathlib import Path

from kscout.compressed import SUFFIX
from kscout.errors import ConfigError, unknown_name

_FOLDER = Path(__file__).parent

ZOO: dict[str, str] = {
    "knee-general-unet": "reconstructor",
    "knee-cotrained-16-unet": "reconstructor",
    "knee-cotrained-4-unet": "reconstructor",
    "knee-general-16-fixed": "policy",
    "knee-general-16-column": "policy",
    "knee-general-16-ensemble": "policy",
    "knee-general-4-fixed": "policy",
    "knee-general-4-column": "policy",
    "knee-general-4-ensemble": "policy",
    "knee-cotrained-16-fixed": "policy",
    "knee-cotrained-16-column": "policy",
    "knee-cotrained-16-ensemble": "policy",
    "knee-cotrained-4-fixed": "policy",
    "knee-posterior": "policy",
    "heads-general-unet": "reconstructor",
    "heads-cotrained-16-unet": "reconstructor",
    "heads-cotrained-4-unet": "reconstructor",
    "heads-general-16-fixed": "policy",
    "heads-general-16-column": "policy",
    "heads-general-16-ensemble": "policy",
    "heads-general-4-fixed": "policy",
    "heads-general-4-column": "policy",
    "heads-general-4-ensemble": "policy",
    "heads-cotrained-16-fixed": "policy",
    "heads-cotrained-16-column": "policy",
    "heads-cotrained-16-ensemble": "policy",
    "heads-cotrained-4-fixed": "policy",
    "heads-cotrained-4-column": "policy",
    "heads-cotrained-4-ensemble": "policy",
    "heads-posterior": "policy",
    "knee-unet": "reconstructor",
    "knee-base-greedy": "policy",
    "knee-base-fixed": "policy",
    "knee-long-fixed": "policy",
    "heads8-varnet": "reconstructor",
}
"""What each entry is. Networks lie compressed in NAME.safetensors.xz, orders and weights of other
entries in NAME.safetensors, the card in NAME.md."""

REMOVED = {
    "knee-base-imagine": "knee-posterior",
    "knee-base-weighed": "knee-general-16-ensemble",
    "knee-long-weighed": "knee-general-4-ensemble",
    "heads-base-imagine": "heads-posterior",
    "heads-base-weighed": "heads-general-16-ensemble",
    "heads-long-weighed": "heads-general-4-ensemble",
    "knee-base-column": "knee-general-16-column",
    "knee-base-posterior": "knee-posterior",
    "knee-base-ensemble": "knee-general-16-ensemble",
    "knee-long-ensemble": "knee-general-4-ensemble",
    "knee-long-greedy": "knee-long-fixed",
    "knee-sizes-unet": "knee-general-unet",
    "knee-sizes-column": "knee-general-16-column",
    "heads-unet": "heads-general-unet",
    "heads-base-greedy": "heads-general-16-column",
    "heads-base-column": "heads-general-16-column",
    "heads-base-posterior": "heads-posterior",
    "heads-base-ensemble": "heads-general-16-ensemble",
    "heads-base-fixed": "heads-general-16-fixed",
    "heads-long-ensemble": "heads-general-4-ensemble",
    "heads-long-fixed": "heads-general-4-fixed",
    "joint-knee-base-unet": "knee-cotrained-16-unet",
    "joint-knee-base-column": "knee-cotrained-16-column",
    "joint-knee-long-unet": "knee-cotrained-4-unet",
    "joint-knee-long-column": "knee-cotrained-4-fixed",
}
"""Removed entries, and the entry to use instead, which may be removed in turn."""


_ROUNDED = {
    "bb13832a1b0b4e4f": "ee04aa10c3715f5e",  # knee-unet
    "cf098a7db2ced55e": "a6d0c054197bd0ca",  # knee-general-16-column
    "25b1dc06c56bf9e9": "60031d155de22906",  # heads-general-16-column
}
"""Fingerprints of networks as others were trained with them, and as they were rounded later."""


_SIZE = (1, 128, 128)
SHAPES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "4103631ccb32": (_SIZE,),
    "cd9c696c128c": (_SIZE,),
    "635826ecc81d": (_SIZE,),
    "e6f7dc2968e0": (_SIZE,),
    "aaa5d11fdd5a": (_SIZE,),
    "cb4c7c8d626a": ((8, 128, 128),),
}
"""Number of coils, rows and columns of the training images, by the fingerprint of the dataset, for
files of version 0.2, which do not record them."""


def as_shipped(fingerprint: str) -> str:
    """Return the fingerprint that a network has as it comes with the package."""
    return _ROUNDED.get(fingerprint, fingerprint)


def zoo_path(source: str | Path) -> Path | None:
    """Return the weights of a zoo name, or of the best epoch of a run (`RUN@best`); else None.

    A file or folder of that name in the working directory goes first, and a `Path` is always one.
    """
    if not isinstance(source, str) or Path(source).exists():
        return None
    run = Path(source.removesuffix("@best"))
    if source.endswith("@best") and run.is_dir():
        return run / "best.safetensors"
    _check_current(source)
    return zoo_file(source) if source in ZOO else None


def _check_current(name: str) -> None:
    """Reject the name of a removed entry."""
    entry = name
    while entry not in ZOO and entry in REMOVED:
        entry = REMOVED[entry]
    if entry != name:
        raise ConfigError(f"the zoo entry {name!r} was replaced; use {entry!r}")


def zoo_file(name: str) -> Path:
    """Return the weights of an entry, compressed or plain."""
    plain = _FOLDER / f"{name}.safetensors"
    packed = plain.with_name(f"{plain.name}{SUFFIX}")
    return packed if packed.is_file() else plain


def zoo_names(kind: str) -> list[str]:
    """Return the names of the zoo's policies (`policy`) or reconstructions (`reconstructor`)."""
    return [name for name, its_kind in ZOO.items() if its_kind == kind]


def zoo_card(name: str) -> str:
    """Return the card of an entry: data, command, scores and intended use, in Markdown."""
    _check_current(name)
    if name not in ZOO:
        raise unknown_name("zoo entry", name, list(ZOO))
    return (_FOLDER / f"{name}.md").read_text(encoding="utf-8")


__all__ = [
    "REMOVED",
    "SHAPES",
    "ZOO",
    "as_shipped",
    "zoo_card",
    "zoo_file",
    "zoo_names",
    "zoo_path",
]
