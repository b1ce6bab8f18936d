"""One network for several matrix sizes: reconstruction and policy at each of them.

    kscout data make knee --size 320 --volumes 260,8,26 --slices 16 --out stores/knee-320
    python lab/sizes.py --data stores/knee-320 --reconstructor knee-unet --limit 104
    python lab/sizes.py --data stores/knee-320 --reconstructor runs/unet \
        --policy runs/column --limit 208 --n-train 64

Test slices are downsampled as in training with `training.sizes`. A reconstruction is evaluated with
the central quarter of the columns. A policy starts from the central eighth and acquires another
eighth; it is compared with the fixed order of training slices that are downsampled in the same way.
"""

from pathlib import Path

import torch
from commands import parser
from results import Row, record, result

from kscout import reconstruction
from kscout.acquisition.plan import Plan
from kscout.config import ReconstructorTraining
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.device import describe_device, resolve_device
from kscout.evaluation import EvaluationSetting, evaluate
from kscout.evaluation.running.prepare import fitted_order
from kscout.physics.sampling import center_mask
from kscout.policies.fixed import FixedOrder
from kscout.provenance import commit
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.augmentation import coarser_slices
from kscout.training.reconstructor import validation_ssim

SIZES = (64, 96, 128, 192, 256, 320)


def central_ssim(model: Reconstructor, slices: SliceSet) -> float:
    """Return the mean SSIM with the central quarter of the columns."""
    masks = center_mask(slices.n_cols, slices.n_cols // 4).expand(len(slices), -1)
    return validation_ssim(model, slices, masks, ReconstructorTraining(protocol="paper"))


def policy_rows(
    store: Store, slices: SliceSet, network: str, policy: str, n_train: int, device: torch.device
) -> list[Row]:
    """Compare a policy with the fixed order at one size."""
    n_cols = slices.n_cols
    start, steps = n_cols // 8, n_cols // 8
    plan = Plan(start, steps, protocol="paper")
    setting = EvaluationSetting(
        **{"n_initial": start, "steps": steps, "trajectories": 1, "protocol": "paper"},
        **{"reference": "fixed", "device": str(device), "examples": 0},
    )
    model = reconstruction.load(network).to(device)
    sizes = {"n_rows": slices.shape[1], "n_cols": n_cols}
    frozen = model.frozen(precision=setting.precision, device=str(device), **sizes)
    train = coarser_slices(store.split("train").sample(n_train), n_cols).to(device)
    order = fitted_order(train, frozen, plan, n_slices_per_step=setting.fixed_slices)
    fixed = ("fixed", FixedOrder(n_cols=n_cols, order=order))
    found = evaluate([f"{policy}={policy}", fixed], slices, model, setting).found
    (compared,) = found.comparisons
    low, high = compared.interval or (None, None)
    values = {one.policy: one.ssim for one in found.policies}
    common = {"reconstruction": network, "n_initial": n_cols // 8, "steps": n_cols // 8}
    lead = {"difference_to": "fixed", "difference": compared.difference, "low": low, "high": high}
    return [
        result(method="fixed", value=values["fixed"], **common),
        result(method=policy, choice="best", value=values[policy], **lead, **common),
    ]


def main() -> None:
    """Evaluate at every size, and record."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--reconstructor", default="knee-unet")
    options.add_argument("--policy", help="run folder or name")
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options.add_argument("--limit", type=int, help="test slices; all by default")
    options.add_argument("--n-train", type=int, default=256, help="slices of the fixed order")
    asked = options.parse_args()
    store, device = Store.open(asked.data), resolve_device(asked.device)
    for n_cols in asked.sizes:
        slices = coarser_slices(store.split("test").sample(asked.limit), n_cols).to(device)
        words = f"--data {asked.data} --reconstructor {asked.reconstructor} --sizes {n_cols}"
        common = {"experiment": "sizes", "store": "knee-320", "split": "test", "n_cols": n_cols}
        common |= {"n_slices": len(slices), "n_volumes": len(set(slices.volumes)), "n_seeds": 1}
        common |= {"protocol": "paper", "metric": "ssim", "statistic": "mean", "commit": commit()}
        common |= {"device": describe_device(device), "command": f"python lab/sizes.py {words}"}
        if asked.policy:
            given = (store, slices, asked.reconstructor, asked.policy, asked.n_train, device)
            record([row.with_fields(**common) for row in policy_rows(*given)])
            continue
        for name in ("zero-filled", asked.reconstructor):
            model = ZeroFilled() if name == "zero-filled" else reconstruction.load(name)
            fields = {"reconstruction": name, "n_initial": n_cols // 4, "steps": 0}
            value = central_ssim(model.to(device), slices)
            record([result(**common, **fields, method="central columns", value=value)])


if __name__ == "__main__":
    main()
