"""kscout learns which k-space column an MRI scanner should measure next.

What is public is what `dir(kscout)` shows and what its rooms export in `__all__`. All of it loads
on first use, so that `import kscout` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kscout.acquisition.rollout import rollout
    from kscout.evaluation.compare import evaluate
    from kscout.names import use

_FUNCTIONS = {
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

__all__ = ["__version__", "evaluate", "rollout", "use", *_ROOMS]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the public name stands for
    if name in _FUNCTIONS:
        return getattr(import_module(_FUNCTIONS[name]), name)
    if name in _ROOMS:
        return import_module(f"kscout.{name}")
    raise AttributeError(f"module 'kscout' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
