"""What a campaign is given: stores and weights of others, known by their content."""

from collections.abc import Collection, Mapping
from pathlib import Path

from kscout.campaign.file import GivenStore, MadeStore, Store
from kscout.campaign.grid import Network
from kscout.campaign.nodes import Source, address, file_name
from kscout.compressed import plain_checksum
from kscout.data.manifest import MANIFEST, read_manifest
from kscout.names import FORMATS, RAW_FORMATS, RECONSTRUCTORS
from kscout.zoo import zoo_path

_WEIGHTS = "weights.safetensors"
_RAW_ONLY = {one for entry in RAW_FORMATS.values() for one in entry.suffixes}
_RAW_ONLY -= {one for entry in FORMATS.values() for one in entry.suffixes}
"""Suffixes of files that hold k-space and no images."""


def given_store(store: GivenStore, known: Mapping[str, str]) -> Source:
    """Return a store that is given by its path.

    Args:
        store: the path, and what to tell where nothing is there.
        known: fingerprints by path from before, for a store that is gone now: without them all
            runs would change their names with it.
    """
    path, label = Path(store.path), Path(store.path).name
    content = known.get(str(path), f"missing {path}")
    if (path / MANIFEST).is_file():
        manifest = read_manifest(path)
        content, label = manifest.fingerprint, manifest.name
    key = address("store", {}, {"content": content})
    return Source(key, str(path), label, path / MANIFEST, content, store.hint)


def kind_of(store: Store, gone: Collection[str]) -> str:
    """Return what a store holds, `image` or `kspace`, as far as its manifest or recipe tells.

    Args:
        store: given, or how it is made or imported.
        gone: paths of stores of k-space from before, for one that is not there now.
    """
    if isinstance(store, GivenStore):
        if (Path(store.path) / MANIFEST).is_file():
            return read_manifest(Path(store.path)).kind
        return "kspace" if store.path in gone else "image"
    if isinstance(store, MadeStore):
        return "image" if store.coils is None else "kspace"
    of_raw = (store.raw, store.axes, store.header, store.crop, store.resize, store.compress)
    is_raw = any(of_raw) or store.prospective or Path(store.import_).suffix in _RAW_ONLY
    return "kspace" if is_raw else "image"


def given_reconstruction(network: Network, known: Mapping[str, str]) -> Source:
    """Return a reconstruction that is given by its path or its name."""
    given = network.given or ""
    if given in RECONSTRUCTORS:
        return Source(address("reconstructor", {}, {"name": given}), given, file_name(given))
    file = zoo_path(given) or weights_file(Path(given))
    content = plain_checksum(file) if file.is_file() else known.get(given, f"missing {given}")
    key = address("reconstructor", {}, {"content": content})
    hint = "train it with `kscout train reconstructor`, or name another path"
    return Source(key, given, network.name, file, content, hint)


def weights_file(path: Path) -> Path:
    """Return the file that a run folder or a path of weights stands for."""
    return path / _WEIGHTS if path.is_dir() else path
