"""What results were asked for: kept beside them, so that no others replace them unasked."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kscout.errors import RunError
from kscout.files import write_json

Request = dict[str, Any]
"""The settings that decide results, as they read back from JSON."""

_NAMES_IN_0_1 = {
    "horizon": "steps",
    "n_trajectories": "trajectories",
    "n_passes": "passes",
    "seeds": "seed",
    "slices": "slice",
    "epochs": "epoch",
}
"""What version 0.1, which did not record the analysis, called some options."""
_N_TOLD = 3
"""Differences that a message names; more make it hard to read."""
_LONGEST = 40
"""Characters of a value that a message shows."""


def as_request(settings: Mapping[str, Any]) -> Request:
    """Return settings as they read back from JSON; paths become text."""
    return json.loads(json.dumps(dict(settings), default=str))


def check_request(out: Path, product: str, there: Request | None, here: Request) -> None:
    """Refuse to replace results of other settings.

    Args:
        out: the folder.
        product: what lies there, in words.
        there: what was asked for when it was written; None where that is not known.
        here: what is asked for now.
    """
    if there == here:
        return
    if there is None:
        found = "whose settings are not recorded"
    else:
        found = f"of other settings ({_differences(there, here)})"
    raise RunError(
        f"{out} holds {product} {found}; name another --out, or replace them with --overwrite"
    )


def check_table(out: Path, name: str, here: Request) -> None:
    """Refuse to replace the table `name` of a folder where it was made with other settings."""
    if not (out / f"{name}.csv").exists():
        return
    there = kept_request(out, name)
    if there is not None and "analysis" not in there:
        there = {_NAMES_IN_0_1.get(key, key): value for key, value in there.items()}
        shared = [key for key in there if key in here]
        there = {**here, **{key: there[key] for key in shared}}
    check_request(out, f"{name}.csv", there, here)


def keep_request(out: Path, name: str, request: Request) -> None:
    """Record beside a table what it was made with."""
    write_json(_request_file(out, name), request)


def _request_file(out: Path, name: str) -> Path:
    return out / f"{name}.settings.json"


def kept_request(out: Path, name: str) -> Request | None:
    """Return what a table was made with; None where that is not known."""
    try:
        found = json.loads(_request_file(out, name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _differences(there: Request, here: Request) -> str:
    keys = [key for key in dict.fromkeys([*there, *here]) if there.get(key) != here.get(key)]
    told = [_difference(key, there.get(key), here.get(key)) for key in keys[:_N_TOLD]]
    n_more = len(keys) - len(told)
    return "; ".join([*told, f"{n_more} more"] if n_more else told)


def _difference(key: str, there: object, here: object) -> str:
    name = key.replace("_", " ")
    words = [_words(value) for value in (there, here)]
    if max(map(len, words)) > _LONGEST:
        return f"other {name}"
    return f"{name}: {words[0]} there, {words[1]} here"


def _words(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "not set" if value is None else str(value)
