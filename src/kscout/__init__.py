"""kscout learns which k-space column an MRI scanner should measure next.

What is public is what `dir(kscout)` shows and what its rooms export in `__all__`. All of it loads
on first use, so that `import kscout` does not wait for torch.
"""

from typing import TYPE_CHECKING

from kscout.exports import on_first_use

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kscout.acquisition.rollout import rollout
    from kscout.contracts import check_policy, check_reconstructor
    from kscout.evaluation.compare import evaluate
    from kscout.names import use

_FUNCTIONS = {
    "check_policy": "kscout.contracts",
    "check_reconstructor": "kscout.contracts",
    "evaluate": "kscout.evaluation.compare",
    "rollout": "kscout.acquisition.rollout",
    "use": "kscout.names",
}
_ROOMS = (
    "acquisition",
    "core",
    "data",
    "evaluation",
    "metrics",
    "names",
    "physics",
    "policies",
    "reconstruction",
    "training",
)
_PLACES = {**_FUNCTIONS, **{room: f"kscout.{room}" for room in _ROOMS}}

__getattr__, _names = on_first_use(__name__, _PLACES)

__all__ = [
    "__version__",
    "check_policy",
    "check_reconstructor",
    "evaluate",
    "rollout",
    "use",
    *_ROOMS,
]


def __dir__() -> list[str]:
    return [*_names(), "__version__"]
