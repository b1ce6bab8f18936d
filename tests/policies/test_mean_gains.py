"""Tables of mean gains are found by matrix and start."""

import torch

from kscout.policies.mean_gains import steps_since, tables_of


def test_steps_are_counted_from_the_nearest_start_in_columns_of_the_matrix() -> None:
    tables = tables_of(32, 4, 12, known_cols=[16], known_starts=[8])
    for n_cols, measured, step, wanted in (
        (32, 9, 5, 5),
        (32, 9, 1, 1),
        # From 7 columns, one of which was acquired, those of 8 are nearest.
        (32, 8, 1, 0),
        (32, 3, 0, 0),
        # 2 and 4 columns of 16 are 4 and 8 of 32.
        (16, 6, 4, 4),
        (16, 6, 2, 2),
        # Nearest to 32: 8 and 16 columns of 64.
        (64, 20, 12, 12),
        (64, 20, 4, 4),
    ):
        given = (torch.tensor([measured]), torch.tensor([step]), n_cols)
        assert steps_since(tables, *given).tolist() == [wanted], given
