"""Draws depend on what their key says, not on the types that say it."""

import numpy as np
import pytest

from kscout.errors import ConfigError
from kscout.randomness import keyed_generator


def test_a_number_of_numpy_is_the_same_key() -> None:
    expected = keyed_generator(3, "x").initial_seed()
    assert keyed_generator(np.int64(3), np.str_("x")).initial_seed() == expected
    assert keyed_generator(np.int64(4), "x").initial_seed() != expected
    assert keyed_generator("3", "x").initial_seed() != expected


@pytest.mark.usefixtures("unchecked")
def test_a_seed_that_is_no_whole_number_is_told() -> None:
    with pytest.raises(ConfigError, match=r"0\.5 cannot seed random numbers"):
        keyed_generator(0.5)  # type: ignore[arg-type]
