"""The page of the demo: a report on its folders, with images before and commands after."""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from kscout.data.store import Store
from kscout.demo.commands import EVALUATE, as_shell, commands_of, untrained_script
from kscout.demo.reconstructions import CLASSICAL, UNET, Comparison
from kscout.demo.settings import ACCELERATIONS, CLAIMED, REFERENCE, DemoFolder, DemoSettings
from kscout.demo.zoo_section import paper_size_section, tell_scores
from kscout.demo.zoo_stages import ZooRun
from kscout.figures.blocks import Drawing, Prose, Section, Widget
from kscout.figures.pictures import draw_montage
from kscout.report.build import build_report, write_report
from kscout.report.evaluations import read_evaluation
from kscout.report.folders import search
from kscout.report.page import Front
from kscout.report.reconstructions import reconstruction_section

TITLE = "Learning which k-space columns to measure: the paper in miniature"
_N_SHOWN = 8
_CODE_STYLE = (
    "overflow-x:auto;background:var(--panel);padding:.8rem 1rem;border-radius:8px;"
    "font-size:.82rem;line-height:1.5;margin:0 0 1rem"
)


def write_demo_page(
    settings: DemoSettings,
    folder: DemoFolder,
    store: Store,
    compared: Comparison,
    zoo: Sequence[ZooRun],
) -> Path:
    """Write the self-contained page and return its path."""
    report = build_report(folder.reported, title=TITLE)
    summary = read_evaluation(folder.evaluation).summary
    zoo_folders = [folder.paper_evaluation(run.budget.name) for run in zoo]
    sections = (
        data_section(settings, store),
        reconstruction_section(
            compared.scores,
            compared.pictures,
            protocol=settings.evaluation.plan.protocol,
            about=f"{summary['n_slices']} test slices of {summary['n_volumes']} knees that no "
            "training saw; random masks around the central eighth of the columns, one per knee and "
            "the same for every method. Brackets: 95 % intervals with knees as the unit.",
        ),
        *report.sections,
        paper_size_section(zoo),
        commands_section(settings, folder),
    )
    front = replace(
        report.front,
        subtitle="Procedural knees, a small U-Net and two small policies, trained within minutes "
        "on a CPU by kscout. A demonstration of the method, not a result on patients.",
        summary=(*_summary(report.front, summary, compared), tell_scores(zoo)),
    )
    provenance = {**report.provenance, **search(zoo_folders).provenance}
    whole = replace(report, front=front, sections=sections, provenance=provenance)
    (path,) = write_report(whole, folder.page)
    return path


def data_section(settings: DemoSettings, store: Store) -> Section:
    """Show some training images, and say what they are."""
    slices = store.split("train")
    places = np.linspace(0, len(slices) - 1, _N_SHOWN).round().astype(int)
    n_train, n_val, n_test = (n * settings.slices for n in settings.volumes)
    text = (
        f"{sum(settings.volumes)} knees were drawn from random anatomy and scanner settings, "
        f"{settings.slices} slices of {settings.size}×{settings.size} pixels each: "
        f"{n_train} slices for training, {n_val} for validation, {n_test} for the test. They "
        "look like MR images and need no license; they are not patients. No setting was chosen "
        "on test slices."
    )
    figure = draw_montage([np.asarray(slices.images[place]) for place in places])
    caption = "Some of the training images, each with its own brightness."
    return Section("Images", (Prose(text), Drawing(figure, "images", caption, is_wide=True)))


def tell_claim(summary: dict[str, Any]) -> str:
    """Say by how much the trained policy beats the plain masks, and whether that is chance."""
    against = {entry["policy"]: entry for entry in summary["comparisons"]}
    leads, clear = [], True
    for name in CLAIMED:
        low, high = against[name]["interval"]
        leads.append(
            f"{-against[name]['difference']:+.4f} against {name} [{-high:.4f}, {-low:.4f}]"
        )
        clear = clear and high < 0
    verdict = (
        "every interval excludes zero"
        if clear
        else "**not every interval excludes zero**, so this run does not show an advantage"
    )
    return (
        f"The learned policy **{REFERENCE}** started from random weights, whose own row is "
        f"“untrained”. Its paired SSIM differences: {'; '.join(leads)} (95 % intervals over "
        f"{summary['n_volumes']} test knees): {verdict}."
    )


def commands_section(settings: DemoSettings, folder: DemoFolder) -> Section:
    """Show how each step is redone by hand, and what differs from the paper."""
    greedy, non_greedy = settings.policy_epochs
    differs = (
        "**What differs from the paper.** Images of "
        f"{settings.size}×{settings.size} pixels instead of 128×128 knees of fastMRI, "
        f"{settings.n_initial} + {settings.horizon} columns instead of 16 + 16; a U-Net of "
        f"{settings.unet_channels} channels (16) trained for {settings.unet_epochs} epochs (50) "
        f"with step size {settings.unet_learning_rate:g} (0.001); policy networks of "
        f"{settings.policy_channels} channels (16) and {settings.policy_hidden} hidden units "
        f"(256), trained for {greedy} epochs (greedy) and {non_greedy} (non-greedy) instead of "
        f"50, with step size {settings.policy_learning_rate:g} (0.00005), batches of "
        f"{settings.batch_size} (16) and {settings.n_trajectories} draws (8). Estimators, rewards, "
        "masks and scores are the paper's."
    )
    intro = (
        "The demo called the same functions as these commands. Typed again, making and training "
        "find their work done; with another --out all is done anew."
    )
    codes = {title: as_shell(words) for title, words in commands_of(settings, folder).items()}
    # The evaluation reads the file that this writes, so it stands before it.
    python = {"Write the untrained network (Python)": untrained_script(settings, folder)}
    place = list(codes).index(EVALUATE)
    items = [*codes.items()]
    ordered = [*items[:place], *python.items(), *items[place:]]
    widgets = [Widget(_code(title, text)) for title, text in ordered]
    return Section("How this was made", (Prose(differs), Prose(intro), *widgets))


def _code(title: str, text: str) -> str:
    return (
        f'<p style="margin:0 0 .3rem"><b>{escape(title)}</b></p>'
        f'<pre tabindex="0" style="{_CODE_STYLE}"><code>{escape(text)}</code></pre>'
    )


def _summary(front: Front, summary: dict[str, Any], compared: Comparison) -> tuple[str, ...]:
    lead, *rest = front.summary
    slow, fast = ACCELERATIONS[0], ACCELERATIONS[-1]
    images = (
        f"The reconstruction under all policies is a U-Net trained here. With random masks it "
        f"reaches SSIM {compared.ssim(UNET, slow):.3f} at {slow:g}× and "
        f"{compared.ssim(UNET, fast):.3f} at {fast:g}× on test knees; {CLASSICAL} "
        f"{compared.ssim(CLASSICAL, slow):.3f} and "
        f"{compared.ssim(CLASSICAL, fast):.3f}, zero-filling "
        f"{compared.ssim('zero-filled', slow):.3f} and {compared.ssim('zero-filled', fast):.3f}."
    )
    return (lead, tell_claim(summary), f"{images}{_tell_noise(compared)}", *rest)


def _tell_noise(compared: Comparison) -> str:
    """Say where the U-Net's lead does not hold in PSNR."""
    psnr = {(score.name, score.acceleration): score.psnr for score in compared.scores}
    behind = [
        f"{at:g}× ({psnr[CLASSICAL, at]:.1f} against {psnr[UNET, at]:.1f} dB)"
        for at in ACCELERATIONS
        if psnr[CLASSICAL, at] > psnr[UNET, at]
    ]
    return f" By PSNR, {CLASSICAL} leads at {' and '.join(behind)}." if behind else ""
