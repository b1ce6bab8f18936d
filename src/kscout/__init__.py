"""kscout learns which k-space column an MRI scanner should measure next.

    import kscout
    from kscout.data import MakeSettings
    from kscout.training import AcquisitionSetting, GreedyTraining, PolicyConfig

    images = MakeSettings(kind="knee", volumes=(16, 4, 8), slices=2, size=64)
    store = kscout.make_store("stores/knee", images)
    acquisition, training = AcquisitionSetting(4, 6), GreedyTraining(n_epochs=2, batch_size=8)
    config = PolicyConfig(acquisition=acquisition, training=training)
    kscout.train_policy(config, store, "zero-filled", "runs/policy")
    policies = ["random", "fixed", "runs/policy"]
    kscout.evaluate(policies, store, "zero-filled", n_initial=4, steps=6)
    kscout.acquire("runs/policy", store.split("test"), "zero-filled", start=4, budget=10).plot()

Public names are those in `dir(kscout)` and in the `__all__` of its packages. They load on first
use, so `import kscout` does not import torch. In a notebook a store shows its slices, a run its
learning curve, and an evaluation its table.
"""

from typing import TYPE_CHECKING

from kscout.exports import on_first_use

__version__ = "0.3.0"

if TYPE_CHECKING:
    from kscout.acquisition.loop import rollout as rollout
    from kscout.acquisition.plan import Plan as Plan
    from kscout.contracts import check_policy as check_policy
    from kscout.contracts import check_reconstructor as check_reconstructor
    from kscout.data.generate import make_store as make_store
    from kscout.data.store import Store as Store
    from kscout.evaluation.acquired import acquire as acquire
    from kscout.evaluation.compare import evaluate as evaluate
    from kscout.names import use as use
    from kscout.runs import read_run as read_run
    from kscout.training.joint.train import train_joint as train_joint
    from kscout.training.policy import train_policy as train_policy
    from kscout.training.reconstructor import train_reconstructor as train_reconstructor

_ROOMS = "acquisition core data evaluation metrics names physics policies reconstruction training"
_MODULES = {f"kscout.{room}": room for room in _ROOMS.split()}
_MODULES |= {
    "kscout.data.store": "Store",
    "kscout.contracts": "check_policy check_reconstructor",
    "kscout.evaluation.acquired": "acquire",
    "kscout.evaluation.compare": "evaluate",
    "kscout.data.generate": "make_store",
    "kscout.runs": "read_run",
    "kscout.acquisition.plan": "Plan",
    "kscout.acquisition.loop": "rollout",
    "kscout.training.joint.train": "train_joint",
    "kscout.training.policy": "train_policy",
    "kscout.training.reconstructor": "train_reconstructor",
    # Also public under its own name.
    "kscout.names": "names use",
}

__getattr__, __dir__, __all__ = on_first_use(__name__, _MODULES, "__version__")
