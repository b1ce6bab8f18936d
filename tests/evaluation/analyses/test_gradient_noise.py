"""Signal-to-noise ratios: the reference's numbers, both formulas, and going on after a stop."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kscout.errors import ConfigError, RunError
from kscout.evaluation.analyses.snr import (
    PassRecord,
    measure_passes,
    read_passes,
    signal_to_noise,
    snr_rows,
)


@pytest.mark.parametrize("n_passes", [2, 3])
def test_reference_formula_matches_the_reference(golden: Any, n_passes: int) -> None:
    gradients = golden("snr", "grads").view(n_passes, -1, 8, 5)
    expected = golden("snr", f"snr_runs{n_passes}").tolist()
    assert signal_to_noise(gradients, "reference") == pytest.approx(expected, rel=1e-5)


def test_paper_formula_is_its_definition(generator: torch.Generator) -> None:
    gradients = torch.randn(3, 5, 7, 2, generator=generator) + 0.3
    ratios = []
    for one_pass in gradients.double():
        mean = one_pass.mean(dim=0)
        variance = (one_pass - mean).square().sum(dim=0) / (5 * 4)
        ratios.append(mean.norm() / variance.sqrt().norm())
    expected = (torch.stack(ratios).mean().item(), torch.stack(ratios).std().item())
    assert signal_to_noise(gradients) == pytest.approx(expected, rel=1e-9)
    reference = signal_to_noise(gradients, "reference")[0]
    assert reference == pytest.approx(expected[0] * math.sqrt(5 / 4), rel=1e-9)


def test_one_pass_has_no_spread_and_one_batch_no_ratio() -> None:
    mean, std = signal_to_noise(torch.tensor([[[1.0], [2.0]]]))
    assert mean == pytest.approx(3.0)
    assert math.isnan(std)
    with pytest.raises(ConfigError, match="1 batch of"):
        signal_to_noise(torch.ones(2, 1, 3))


class _Gradients:
    """Gradients keyed by batch and pass, that can be cut off after some calls."""

    def __init__(self, cut_off: int | None = None) -> None:
        self.n_calls, self.cut_off = 0, cut_off

    def __call__(self, pass_index: int) -> Iterator[torch.Tensor]:
        for batch in range(4):
            if self.n_calls == self.cut_off:
                raise KeyboardInterrupt
            self.n_calls += 1
            generator = torch.Generator().manual_seed(100 * pass_index + batch)
            yield torch.randn(6, generator=generator) + 0.5


def _measure(path: Path, gradients: _Gradients, **options: Any) -> list[PassRecord]:
    return measure_passes(10, gradients, record=path, **options)


def test_stopped_measurement_resumes_with_the_same_numbers(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _measure(tmp_path / "a.jsonl", _Gradients(cut_off=6))
    assert len(read_passes(tmp_path / "a.jsonl")) == 1
    again = _Gradients()
    resumed = _measure(tmp_path / "a.jsonl", again)
    assert again.n_calls == 8
    assert resumed == _measure(tmp_path / "b.jsonl", _Gradients())


def test_more_passes_are_measured_not_reused(tmp_path: Path) -> None:
    assert len(_measure(tmp_path / "a.jsonl", _Gradients(), n_passes=2)) == 2
    more = _Gradients()
    records = _measure(tmp_path / "a.jsonl", more, n_passes=5)
    assert more.n_calls == 12
    assert len({record.paper for record in records}) == 5
    assert snr_rows("run", 0, records, n_initial=3, steps=2)[0].n_passes == 5


def test_other_settings_are_not_mixed(tmp_path: Path) -> None:
    _measure(tmp_path / "a.jsonl", _Gradients(), setting="q=16")
    other = _Gradients()
    _measure(tmp_path / "a.jsonl", other, setting="q=8")
    assert other.n_calls == 12


def test_half_written_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    _measure(path, _Gradients(), n_passes=1)
    path.write_text(path.read_text() + '{"epoch": 10, "pass_in')
    assert len(read_passes(path)) == 1


def test_table_agrees_with_the_direct_ratio(tmp_path: Path) -> None:
    records = _measure(tmp_path / "a.jsonl", _Gradients())
    source = _Gradients()
    gradients = torch.stack([torch.stack([*source(index)]) for index in range(3)])
    (row,) = snr_rows("run", 0, records, n_initial=3, steps=2)
    assert (row.snr_paper, row.std_paper) == pytest.approx(signal_to_noise(gradients))
    assert row.n_batches == 4


@pytest.mark.parametrize("change", [{"epoch": "x"}, {"paper": None}, {"setting": 3}, {"more": 1}])
def test_a_damaged_record_of_passes_is_reported(tmp_path: Path, change: dict[str, object]) -> None:
    whole = {
        **{"epoch": 1, "pass_index": 0, "n_batches": 2, "n_values": 3},
        **{"paper": 1.5, "reference": math.nan, "setting": "s"},
    }
    record = tmp_path / "snr.jsonl"
    record.write_text(json.dumps(whole) + "\n")
    assert [one.epoch for one in read_passes(record)] == [1]
    record.write_text(json.dumps({**whole, **change}) + "\n")
    with pytest.raises(RunError, match="is not a record of gradient passes"):
        read_passes(record)
