"""Whether a reconstruction, a policy, images and an acquisition belong together.

What cannot work raises a `ConfigError`. What works, but is not what was trained for, is a note: one
sentence that states the difference and which entries of the zoo fit, or how to train one. All facts
are those that weights files record.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, final

from kscout.columns import columns_text, parse_columns
from kscout.core import Policy, Protocol, Reconstructor
from kscout.errors import ConfigError
from kscout.names import POLICIES, RECONSTRUCTORS, TARGETS, Registry
from kscout.names.renamed import current
from kscout.weights import build_component, described, fingerprint, read_weights
from kscout.zoo import SHAPES, ZOO, as_shipped, zoo_file, zoo_names

_KINDS = {"policy": "policy", "reconstructor": "reconstruction"}
"""Kinds of names, by kinds of zoo entries."""
Shape = tuple[int, int, int]
"""Number of coils, rows and columns; 0 coils stand for any number."""


@final
@dataclass(frozen=True)
class Use:
    """Images and acquisition that a reconstruction and a policy are used for."""

    shape: Shape
    n_initial: int = 0
    horizon: int = 0
    """Number of columns to acquire; 0 without an acquisition."""
    protocol: Protocol | None = None
    """None where images are not scored."""
    start: str | None = None
    """Columns at the start; None for central ones."""
    columns_per_step: int = 1


def check_matrix(
    policy: Policy,
    shape: Shape,
    *,
    name: str | None = None,
    images: str = "slices have",
    size: str = "import the images at its size (--resample, --size), or train a policy on them",
) -> None:
    """Raise an error if a policy cannot score the columns of these images.

    Args:
        policy: the policy.
        shape: of the images.
        name: of the policy in the message; by default that of its class.
        images: what the message calls the images, with its verb.
        size: what the message advises.
    """
    misfit = policy.misfit(*shape[1:])
    if misfit is None:
        return
    subject = type(policy).__name__ if name is None else f"policy {name!r}"
    raise ConfigError(f"{subject} was made for {misfit[0]}, the {images} {misfit[1]}; {size}")


def check_real(policy: Policy, images: str | None, *, name: str | None = None) -> None:
    """Raise an error if a policy samples real images; `images` describes those that are not."""
    if policy.needs_gain_estimator and images is not None:
        subject = type(policy).__name__ if name is None else f"policy {name!r}"
        raise ConfigError(
            f"{subject} samples real images, and {images}; use another policy, or magnitude images"
        )


def network_notes(network: Reconstructor, use: Use) -> list[str]:
    """Return a sentence each if protocol, images or acquisition are others than in training.

    Only a reconstruction that was trained together with a policy belongs to an acquisition.
    """
    recorded, other = network.original.recorded, protocol_note(network, use)
    notes, shapes, trained = [other] if other else [], _shapes(recorded), _acquisition(recorded)
    if shapes and not _is_shape(shapes, use.shape):
        fits = [x for x in _reconstructions_for(use) if not _recorded(x).get("joint")]
        notes.append(
            f"the reconstruction was trained on {_images(shapes)} and is used here on "
            f"{_images([use.shape])}; "
            + _advice(fits, "these", "train one on these with kscout train reconstructor")
        )
    here = (use.n_initial, use.horizon, use.start)
    if use.horizon and recorded.get("joint") and trained is not None and trained[:3] != here:
        fits = [x for x in _reconstructions_for(use) if _recorded(x).get("joint")]
        notes.append(
            f"the reconstruction learned together with a policy for {_columns(*trained[:3])} "
            f"columns and is used here with {_columns(*here)}; "
            + _advice(fits, "these", "train one for these with kscout train joint")
        )
    return notes


def protocol_note(network: Reconstructor, use: Use, *, in_session: bool = False) -> str | None:
    """Return a sentence if a reconstruction is used under the other protocol than in training."""
    if use.protocol is None or network.protocol in (None, use.protocol):
        return None
    effect = "changes brightness and contrast of its images" if in_session else "lowers its scores"
    train = f"train one with kscout train reconstructor --protocol {use.protocol}"
    return (
        f"the reconstruction was trained for protocol {network.protocol} and is used "
        f"{'in sessions' if in_session else 'here'} under protocol {use.protocol}, which {effect}; "
        f"{_advice(_reconstructions_for(use), f'protocol {use.protocol}', train)}"
        f"{'' if in_session else f', or use it under {network.protocol}'}"
    )


def target_note(network: Reconstructor, rule: str, n_coils: int) -> str | None:
    """Return a sentence if a reconstruction combines coils by another rule than the targets."""
    own = getattr(network, "output", rule)
    if n_coils == 1 or own == rule or own not in TARGETS:
        return None
    return (
        f"this {type(network).__name__} combines coils by target rule {own}, and the targets have "
        f"rule {rule}: expect poor scores, or train one with --set reconstructor.output={rule}"
    )


def policy_notes(
    policies: Iterable[tuple[str, Policy]], network: Reconstructor | None, use: Use
) -> list[str]:
    """Return a sentence per policy trained for another acquisition, and one per other network."""
    named, others = dict(policies), dict[tuple[str, bool], list[str]]()
    notes = [acquisition_note(name, policy, use, network) for name, policy in named.items()]
    for name, policy in named.items():
        trained = _network_of(policy.recorded)
        if network is not None and trained is not None and trained != _own(network):
            others.setdefault((trained, _is_ensemble(policy)), []).append(name)
    for (trained, is_ensemble), names in others.items():
        train = f"{_training(is_ensemble)} with this one"
        subject = "ensembles fitted" if is_ensemble else "policies trained"
        notes.append(
            f"{subject} with {_name_of(trained)} run here with another reconstruction: "
            f"{', '.join(names)}; {_advice(_policies_for(network, use), 'this one', train)}"
        )
    return [note for note in notes if note is not None]


def acquisition_note(
    name: str, policy: Policy, use: Use, network: Reconstructor | None = None
) -> str | None:
    """Return a sentence if a policy was trained for another acquisition or protocol."""
    recorded = policy.recorded
    trained = _acquisition(recorded)
    if trained is None or not use.horizon:
        return None
    here = _Acquisition(use.n_initial, use.horizon, use.start, use.columns_per_step)
    protocol = use.protocol and recorded.get("protocol", use.protocol)
    n_cols, own = use.shape[2], getattr(policy, "n_cols", None)
    of = min((shape[2] for shape in _shapes(recorded)), default=own or n_cols)
    if (trained, protocol, of) == (here, use.protocol, n_cols):
        return None
    is_ensemble, is_pace = _is_ensemble(policy), trained.group != here.group
    words = [
        f"{_columns(*one[:3])}{f' of {cols}' if of != n_cols else ''}{noun}"
        f"{f', {one.group} at a time,' if is_pace else ''}{under if use.protocol else ''}"
        for one, cols, noun, under in (
            (trained, of, " columns", f" under protocol {protocol}"),
            (here, n_cols, "", f" under {use.protocol}"),
        )
    ]
    train = f"{_training(is_ensemble)} for this acquisition"
    if use.columns_per_step > 1:
        train = "acquire 1 column per step, as in trainings"
    return (
        f"{'ensemble' if is_ensemble else 'policy'} {name!r} was "
        f"{'fitted' if is_ensemble else 'trained'} for {words[0]} and runs here with "
        f"{words[1].removesuffix(',')}; "
        + _advice(_policies_for(network, use), "this acquisition", train)
    )


def warn(notes: Iterable[str]) -> None:
    """Log notes as warnings."""
    for note in notes:
        logging.getLogger(__name__).warning(note)


class _Acquisition(NamedTuple):
    """Start, number of acquired columns, columns of a start that is not central, and pace."""

    n_initial: int
    horizon: int
    start: str | None
    group: int


def _acquisition(recorded: Mapping[str, Any]) -> _Acquisition | None:
    n_initial, horizon = recorded.get("n_initial"), recorded.get("horizon")
    if type(n_initial) is not int or type(horizon) is not int:
        return None
    start, group = recorded.get("initial"), recorded.get("columns_per_step") or 1
    columns = columns_text(parse_columns(start)) if isinstance(start, str) else None
    return _Acquisition(n_initial, horizon, columns, group)


def _shapes(recorded: Mapping[str, object]) -> Sequence[Shape]:
    """Return the shapes of the training images, nothing where they are unknown."""
    shape = [recorded.get(key) for key in ("n_coils", "n_rows", "n_cols")]
    match shape:
        case [int(n_coils), int(n_rows), int(n_cols)] if n_cols:
            return [(n_coils, n_rows, n_cols)]
    # Files of version 0.2 record the dataset alone.
    return SHAPES.get(str(recorded.get("store"))[:12], ())


def _is_shape(trained: Sequence[Shape], shape: Shape) -> bool:
    n_coils, *size = shape
    return any(one[0] == (n_coils or one[0]) and [*one[1:]] == size for one in trained)


@cache
def _recorded(entry: str) -> Mapping[str, Any]:
    found = described(zoo_file(entry))
    return {} if found is None else found.extra


def _is_for(recorded: Mapping[str, Any], use: Use) -> bool:
    here = _Acquisition(use.n_initial, use.horizon, use.start, use.columns_per_step)
    return _acquisition(recorded) == here and _is_shape(_shapes(recorded), use.shape)


def _reconstructions_for(use: Use) -> list[str]:
    """Return the zoo's reconstructions for some images, a protocol and, if co-trained, columns."""
    found = {x: _recorded(x) for x in zoo_names("reconstructor")}
    return [
        x
        for x, recorded in found.items()
        if _is_shape(_shapes(recorded), use.shape)
        and use.protocol in (None, recorded.get("protocol"))
        and (not recorded.get("joint") or _is_for(recorded, use))
    ]


def _policies_for(network: Reconstructor | None, use: Use) -> list[str]:
    """Return the zoo's policies that were trained with a reconstruction for an acquisition."""
    own = None if network is None else _own(network)
    found = {x: _recorded(x) for x in zoo_names("policy")}
    return [x for x, y in found.items() if own == _network_of(y) and _is_for(y, use)] if own else []


def _advice(fits: Sequence[str], use: str, instead: str) -> str:
    return f"the zoo has {', '.join(fits)} for {use}" if fits else instead


def _is_ensemble(policy: Policy) -> bool:
    return hasattr(policy, "members")


def _own(network: Reconstructor) -> str:
    return fingerprint(network.original)


def _network_of(recorded: Mapping[str, object]) -> str | None:
    found = recorded.get("reconstructor")
    return as_shipped(found) if isinstance(found, str) else None


def entry_facts(name: str) -> dict[str, str]:
    """Return kind, images, columns, protocol and content of a zoo entry, from its file."""
    kind, found = ZOO[name], described(zoo_file(name))
    assert found is not None
    shapes, trained = sorted(_shapes(found.extra)), _acquisition(found.extra)
    sides = [f"{n_rows}x{n_cols}" for _, n_rows, n_cols in shapes]
    n_coils, _, n_cols = shapes[-1]
    columns = f"{_columns(*trained[:3])} of {n_cols}" if trained else "any"
    names: Registry[Any] = POLICIES if kind == "policy" else RECONSTRUCTORS
    is_joint = found.extra.get("joint")
    return {
        "kind": kind,
        "images": " to ".join(dict.fromkeys((sides[0], sides[-1])))
        + (f", trained on {n_coils} coils" if n_coils > 1 else ""),
        "columns": columns,
        "protocol": str(found.extra["protocol"]),
        "content": names[current(_KINDS[kind], found.component)].summary
        + (", co-trained" if is_joint else ""),
    }


@cache
def _name_of(network: str | None) -> str:
    """Return the name of the zoo's reconstruction with this fingerprint, else the fingerprint."""
    for name in zoo_names("reconstructor"):
        file = zoo_file(name)
        if fingerprint(build_component(file, read_weights(file), "reconstructor")) == network:
            return name
    # Files may contain any text.
    return f"the reconstruction {network!s:.16}"


def _columns(n_initial: int, horizon: int, start: str | None) -> str:
    return f"{n_initial}{f' ({start})' if start else ''} + {horizon}"


def _images(shapes: Sequence[Shape]) -> str:
    sizes = ", ".join(f"{n_rows}x{n_cols}" for _, n_rows, n_cols in shapes)
    n_coils = shapes[0][0]
    return f"{sizes} images{f' from {n_coils} coils' if n_coils > 1 else ''}"


def _training(is_ensemble: bool) -> str:
    command = "kscout train policy"
    return f"fit one by {command} --method ensemble" if is_ensemble else f"train one by {command}"
