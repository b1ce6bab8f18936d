"""kscout learns which k-space column an MRI scanner should measure next.

The public functions load on first use, so that `import kscout` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kscout.acquisition.rollout import rollout
    from kscout.evaluation.compare import evaluate

_PUBLIC = {"evaluate": "kscout.evaluation.compare", "rollout": "kscout.acquisition.rollout"}

__all__ = ["__version__", "evaluate", "rollout"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the public name stands for
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'kscout' has no attribute {name!r}")
