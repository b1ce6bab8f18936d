"""Whether a number of columns can be acquired."""

from jaxtyping import Bool
from torch import Tensor

from kscout.errors import ConfigError
from kscout.physics.sampling import center_mask


def check_budget(selectable: Bool[Tensor, "batch col"], *, n_initial: int, horizon: int) -> None:
    """Raise a ConfigError where some slice has fewer columns to acquire than asked for.

    Args:
        selectable: columns inside each slice's matrix.
        n_initial: central columns measured at the start.
        horizon: columns to acquire after it.
    """
    n_cols = selectable.shape[1]
    if not 0 < n_initial <= n_cols:
        raise ConfigError(
            f"cannot start from {n_initial} of {n_cols} columns; set n_initial to 1..{n_cols}"
        )
    if horizon < 0:
        raise ConfigError(f"cannot acquire {horizon} columns; set the number of steps to 0 or more")
    left = (selectable & ~center_mask(n_cols, n_initial, selectable.device)).sum(dim=-1)
    n_short = int((left < horizon).sum())
    if n_short:
        raise ConfigError(
            f"no column left to acquire in {n_short} of {len(left)} slices: {n_initial} + "
            f"{horizon} columns were asked of {n_cols}, of which {int(left.min()) + n_initial} "
            f"can be measured; lower the number of steps to {int(left.min())} or less"
        )
