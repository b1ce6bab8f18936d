"""What an evaluation folder says: tables, figures and a summary in plain words."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from kscout.errors import DataError
from kscout.evaluation.paper_numbers import (
    ARXIV,
    NOT_SHOWN,
    SSIM,
    PaperSetting,
    method_of,
    same_setting,
)
from kscout.figures.blocks import Block, Drawing, Prose, Section, link_name
from kscout.figures.curves import draw_ranking, draw_ssim_by_step
from kscout.figures.series import Curve, LineStyle, styles_of
from kscout.figures.tables import Column, Measured, Row, Table
from kscout.names import POLICIES, label_of

PROTOCOL_WORDS = {
    "paper": "Protocol **paper**: images are brought to the target's units with the target's own "
    "mean and deviation, which no scanner has. Masks, normalization and scores are the paper's "
    "way; whether numbers compare with the paper's depends on the data.",
    "blind": "Protocol **blind**: images are brought to the target's units with statistics of the "
    "measured data alone, as on a scanner; scores are not comparable with the paper's.",
}


@final
@dataclass(frozen=True)
class Evaluation:
    """The summary of one evaluation folder."""

    label: str
    summary: dict[str, Any]
    folder: Path | None = None
    """Where its `results.csv` lies."""

    @property
    def policies(self) -> list[dict[str, Any]]:
        """Policies by final SSIM, best first, oracles after the rest."""
        return sorted(
            self.summary["policies"],
            key=lambda policy: (policy["is_oracle"], -final_of(policy)),
        )

    @property
    def steps(self) -> int:
        return len(self.summary["policies"][0]["by_step"]["ssim"]["mean"]) - 1

    @property
    def n_initial(self) -> int | None:
        return self.summary.get("n_initial")

    @property
    def n_cols(self) -> int | None:
        return self.summary.get("n_cols")

    @property
    def protocol(self) -> str:
        return str(self.summary.get("protocol", "not recorded"))

    @property
    def paper_setting(self) -> PaperSetting | None:
        """The setting of the paper that is like this one: same size, budget and protocol."""
        if self.protocol != "paper":
            return None
        return same_setting(self.n_cols, self.n_initial, self.steps)

    def comparison(self, name: str) -> dict[str, Any] | None:
        """Return the paired comparison of a policy with the reference."""
        found = [c for c in self.summary.get("comparisons") or [] if c["policy"] == name]
        return found[0] if found else None


def final_of(policy: dict[str, Any], metric: str = "ssim") -> float:
    """Return a policy's mean after the last step."""
    return float(policy["by_step"][metric]["mean"][-1])


def paper_method(policy: dict[str, Any]) -> str | None:
    """Return the paper's method that a policy of a summary is, by its training or its name."""
    training = policy.get("training")
    if not training:
        return method_of(policy["policy"])
    return method_of(label_of(training["method"], training))


def is_trained(policy: dict[str, Any]) -> bool:
    """Say whether a policy of a summary was trained, by its training or its name."""
    return bool(policy.get("training")) or paper_method(policy) not in (None, *POLICIES.entries)


def read_evaluation(folder: Path, label: str | None = None) -> Evaluation:
    """Read `summary.json` of an evaluation folder."""
    path = folder / "summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        evaluation = Evaluation(label or folder.name, summary, folder)
        _ = [final_of(policy) for policy in evaluation.policies], evaluation.steps
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(
            f"{path} is not the summary of an evaluation ({error!r}); run `kscout evaluate` again"
        ) from error
    return evaluation


def policy_table(evaluation: Evaluation, *, name: str = "policies") -> Table:
    """Return final scores of all policies and the paired comparison.

    The paper's SSIM stands beside where image size, start, number of steps and protocol are the
    paper's.
    """
    setting = evaluation.paper_setting
    reference = evaluation.summary.get("reference")
    n_seeds = max(int(policy.get("n_seeds", 1)) for policy in evaluation.policies)
    columns = (
        Column("policy"),
        Column("SSIM", best="max"),
        Column("PSNR (dB)", digits=2, best="max"),
        Column("NMSE", best="min"),
        Column(f"SSIM minus {reference}", is_signed=True),
        Column("p (corrected)", digits=3, is_probability=True),
        *([Column(f"paper: {setting.title}", is_paper=True)] if setting else []),
    )
    name_of_setting = setting.name if setting else None
    rows = tuple(_policy_row(evaluation, policy, name_of_setting) for policy in evaluation.policies)
    paper = (
        f"The last column is printed in {ARXIV}, for the same image size, start and number of "
        "steps on fastMRI data under protocol paper: not our measurement, and the data are others "
        "unless this store holds fastMRI."
        if setting
        else NOT_SHOWN
    )
    note = (
        f"Means after the last of {evaluation.steps} steps over slices, trajectories and seeds"
        + (f"; ± is the standard deviation over up to {n_seeds} seeds" if n_seeds > 1 else "")
        + f". Brackets: 95 % intervals with volumes as the unit. Protocol {evaluation.protocol}. "
        f"Best values of feasible policies are marked. {paper}"
    )
    return Table(f"Scores after {evaluation.steps} acquired columns", columns, rows, note, name)


def _policy_row(evaluation: Evaluation, policy: dict[str, Any], setting: str | None) -> Row:
    name = policy["policy"]
    ssim = policy["by_step"]["ssim"]
    std, interval = ssim["std"][-1], ssim["interval"][-1]
    compared = evaluation.comparison(name)
    difference = (
        Measured(float(compared["difference"]), interval=_pair(compared.get("interval")))
        if compared
        else None
    )
    return Row(
        (
            name,
            Measured(final_of(policy), std, _pair(interval)),
            Measured(final_of(policy, "psnr")),
            Measured(final_of(policy, "nmse")),
            difference,
            Measured(float(compared["p_value_corrected"])) if compared else None,
            *([_paper_cell(policy, setting)] if setting else []),
        ),
        is_oracle=policy["is_oracle"],
    )


def _paper_cell(policy: dict[str, Any], setting: str) -> Measured | None:
    method = paper_method(policy)
    found = SSIM[setting].get(method) if method else None
    return Measured(*found) if found else None


def _pair(interval: Sequence[float] | None) -> tuple[float, float] | None:
    return None if interval is None else (float(interval[0]), float(interval[1]))


def curves_of(evaluation: Evaluation, metric: str = "ssim") -> list[Curve]:
    """Return every policy's scores by step, with intervals over volumes where there are any."""
    curves = []
    for policy in evaluation.policies:
        table = policy["by_step"][metric]
        mean = np.array(table["mean"], dtype=np.float64)
        has_band = all(interval is not None for interval in table["interval"])
        band = np.array(table["interval"], dtype=np.float64).T if has_band else (None, None)
        x = np.arange(len(mean), dtype=np.float64)
        curves.append(Curve(policy["policy"], x, mean, band[0], band[1], policy["is_oracle"]))
    return curves


def result_sections(
    evaluation: Evaluation, *, styles: dict[str, LineStyle] | None = None
) -> list[Section]:
    """Return the sections of a report on one evaluation."""
    blocks = _blocks(evaluation, styles)
    return [Section(title, found) for title, found in blocks.items()]


def result_section(
    evaluation: Evaluation, *, styles: dict[str, LineStyle] | None = None
) -> Section:
    """Return all that one of several evaluations shows as one section."""
    stem = f"{link_name(evaluation.label)}-"
    parts = _blocks(evaluation, styles, stem).values()
    return Section(evaluation.label, tuple(block for part in parts for block in part))


def _blocks(
    evaluation: Evaluation, styles: dict[str, LineStyle] | None, stem: str = ""
) -> dict[str, tuple[Block, ...]]:
    curves = curves_of(evaluation)
    looks = styles or styles_of(curves)
    protocol = PROTOCOL_WORDS.get(evaluation.protocol, f"Protocol {evaluation.protocol}.")
    by_step = Drawing(
        draw_ssim_by_step(curves, styles=looks),
        f"{stem}ssim-by-step",
        "SSIM after every acquired column, mean over test slices. Oracles, which look at the "
        "ground truth, are dashed.",
    )
    return {
        "Scores": (Prose(protocol), policy_table(evaluation, name=f"{stem}policies")),
        "SSIM by step": (by_step,),
        "SSIM and PSNR": _ranking(evaluation, looks, stem),
    }


def _ranking(evaluation: Evaluation, styles: dict[str, LineStyle], stem: str) -> tuple[Block, ...]:
    policies = evaluation.policies
    if len(policies) < 3:
        return ()
    figure = draw_ranking(
        [policy["policy"] for policy in policies],
        np.array([final_of(policy) for policy in policies]),
        np.array([final_of(policy, "psnr") for policy in policies]),
        oracles=[policy["policy"] for policy in policies if policy["is_oracle"]],
        styles=styles,
    )
    caption = (
        "Final SSIM against final PSNR. The two metrics need not agree: policies are trained and "
        "oracles choose by SSIM, while PSNR favors low frequencies."
    )
    return (Drawing(figure, f"{stem}ssim-psnr", caption),)


def overview_table(evaluations: Sequence[Evaluation]) -> Table:
    """Return final SSIM of every policy (rows) in every evaluation (columns), as in the paper."""
    policies: dict[str, dict[str, Any]] = {}
    for evaluation in evaluations:
        for policy in evaluation.policies:
            policies.setdefault(policy["policy"], policy)
    columns = [Column("policy")]
    columns += [Column(f"{one.label} ({one.protocol})", best="max") for one in evaluations]
    found = [one.paper_setting for one in evaluations]
    settings = [setting for setting in dict.fromkeys(found) if setting is not None]
    columns += [Column(f"paper: {setting.title}", is_paper=True) for setting in settings]
    rows = []
    for name, policy in policies.items():
        ours = [_overview_cell(evaluation, name) for evaluation in evaluations]
        theirs = [_paper_cell(policy, setting.name) for setting in settings]
        rows.append(Row((name, *ours, *theirs), policy["is_oracle"]))
    paper = (
        f"Columns of the paper are printed in {ARXIV} on fastMRI data, and are not our measurements"
        + (
            "; they belong to evaluations of the same size, budget and protocol only."
            if None in found
            else "."
        )
    )
    note = (
        "Final SSIM under the protocol in brackets, mean ± standard deviation over seeds. "
        f"{paper if settings else NOT_SHOWN}"
    )
    return Table("Final SSIM of all policies", tuple(columns), tuple(rows), note, "overview")


def _overview_cell(evaluation: Evaluation, name: str) -> Measured | None:
    for policy in evaluation.policies:
        if policy["policy"] == name:
            return Measured(final_of(policy), policy["by_step"]["ssim"]["std"][-1])
    return None


__all__ = [
    "PROTOCOL_WORDS",
    "Evaluation",
    "curves_of",
    "final_of",
    "is_trained",
    "overview_table",
    "paper_method",
    "policy_table",
    "read_evaluation",
    "result_section",
    "result_sections",
]
