"""Wrong shapes are found in functions of kscout while tests run."""

import jaxtyping
import pytest
import torch

import shape_checks
from kscout.core import Observation
from kscout.metrics import nmse
from kscout.physics.sampling import center_mask

pytest.importorskip("beartype")

WRONG = torch.ones(3, 5)


def scored(target: torch.Tensor) -> None:
    nmse(torch.ones(2, 5, 7), target)


def test_a_wrong_shape_is_found_in_each_test_anew() -> None:
    for _ in range(2):
        for _ in range(shape_checks.N_CALLS):
            with pytest.raises(jaxtyping.TypeCheckError, match="target"):
                scored(WRONG)
        shape_checks.next_test()


def test_after_a_few_calls_a_function_is_as_users_call_it() -> None:
    for _ in range(shape_checks.N_CALLS):
        scored(torch.ones(2, 5, 7))
    with pytest.raises(Exception) as caught:
        scored(WRONG)
    assert not isinstance(caught.value, jaxtyping.TypeCheckError)


def test_results_and_fields_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(jaxtyping.TypeCheckError, match="mask"):
        Observation(image=torch.ones(2, 5, 7), mask=torch.ones(2, 5, 7, dtype=torch.bool))
    monkeypatch.setattr("torch.arange", lambda *_, **__: torch.ones(3, 3))
    with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
        center_mask(7, 3)
