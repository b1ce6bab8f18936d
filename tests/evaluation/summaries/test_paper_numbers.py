"""The paper's numbers are complete, and stand beside the right methods only."""

import pytest

from kscout.evaluation.summaries.paper_numbers import SETTINGS, gamma_of, method_of, same_setting


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("greedy", "greedy"),
        ("knee-base-greedy", "greedy"),
        ("ngreedy-1.0", "ngreedy"),
        ("ngreedy-gamma0.9", "ngreedy-0.9"),
        ("ngreedy(0.9)", "ngreedy-0.9"),
        ("ngreedy-0.5", None),
        ("greedy-all-candidates", None),
        ("fixed", None),
    ],
)
def test_only_the_papers_methods_get_its_numbers(name: str, method: str | None) -> None:
    assert method_of(name) == method


@pytest.mark.parametrize(
    ("name", "gamma"), [("ngreedy-0.95", 0.95), ("ngreedy", 1.0), ("greedy", None), ("fixed", None)]
)
def test_names_tell_the_discount(name: str, gamma: float | None) -> None:
    assert gamma_of(name) == gamma


def test_settings_are_recognized_by_size_start_and_steps() -> None:
    assert same_setting(128, 16, 16) == SETTINGS["knee-base"]
    assert same_setting(256, 8, 28) == SETTINGS["brain-long"]
    assert same_setting(128, 4, 28) == SETTINGS["knee-long"]
    assert same_setting(64, 8, 8) is None
    assert same_setting(128, 16, 28) is None
    assert same_setting(None, None, 16) is None
