"""The page of the demo: a report on its folders, with images before and commands after."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import torch

from kscout.data.store import Store
from kscout.demo.commands import EVALUATE, commands_of, untrained_script
from kscout.demo.paper_size import paper_size_section, tell_scores
from kscout.demo.settings import (
    CLAIMED,
    LEARNED,
    DemoFolder,
    DemoSettings,
)
from kscout.demo.stages import ZooRun, leads_of
from kscout.demo.words import say
from kscout.evaluation.analyses.reconstructions import Reconstructions
from kscout.evaluation.summary import Difference, read_summary
from kscout.figures.blocks import Drawing, Prose, Section, Widget
from kscout.figures.pictures import draw_montage
from kscout.report.build import build_report, write_report
from kscout.report.commands import as_shell, code_html
from kscout.report.folders import search

TITLE = "Learning which k-space columns to measure: the paper in miniature"
_N_SHOWN = 8


def write_demo_page(
    settings: DemoSettings,
    folder: DemoFolder,
    store: Store,
    zoo: Sequence[ZooRun],
) -> Path:
    """Write the self-contained page and return its path."""
    report = build_report(folder.reported, title=TITLE)
    summary = read_summary(folder.evaluation)
    counts = {"n_slices": summary.n_slices, "n_volumes": summary.n_volumes}
    front = replace(
        report.front,
        subtitle=say("subtitle"),
        summary=(tell_claim(leads_of(folder.evaluation), **counts),),
    )
    # The player and the chart, then how they came about, then numbers.
    by_title = {section.title: section for section in report.sections}
    compared = by_title.pop(Reconstructions.title)
    sections = list(by_title.values())
    opening, numbers = sections[:2], sections[2:]
    at_size = paper_size_section(zoo)
    ordered = (
        *opening,
        data_section(settings, store),
        replace(compared, blocks=(Prose(say("reconstructions")), *compared.blocks)),
        *numbers,
        replace(at_size, blocks=(Prose(tell_scores(zoo)), *at_size.blocks)),
        commands_section(settings, folder),
    )
    zoo_folders = [folder.zoo(run.acquisition.name) for run in zoo]
    provenance = {**report.provenance, **search(zoo_folders).provenance}
    whole = replace(report, front=front, sections=ordered, provenance=provenance)
    (path,) = write_report(whole, folder.page)
    return path


def data_section(settings: DemoSettings, store: Store) -> Section:
    """Show some training images, and say what they are."""
    slices = store.split("train")
    places = np.linspace(0, len(slices) - 1, _N_SHOWN).round().astype(int)
    counts = zip(("n_train", "n_val", "n_test"), settings.volumes, strict=True)
    text = say(
        "images",
        n_knees=sum(settings.volumes),
        slices=settings.slices,
        size=settings.size,
        **{name: n * settings.slices for name, n in counts},
    )
    images = slices.batch(torch.from_numpy(places)).target
    figure = draw_montage([np.asarray(image) for image in images])
    drawing = Drawing(figure, "images", say("images_caption"), is_wide=True)
    return Section("Images", (Prose(text), drawing))


def tell_claim(leads: Mapping[str, Difference], *, n_slices: int, n_volumes: int) -> str:
    """Say by how much the trained policy beats plain masks and the fixed order, with intervals."""
    lows = {name: (leads[name].interval or (-1.0, 1.0))[0] for name in (*CLAIMED, "fixed")}
    *most, last = (f"{_lead(leads[name])} {name}" for name in CLAIMED)
    is_clear = all(lows[name] > 0 for name in CLAIMED)
    held = "claim_holds" if lows["fixed"] > 0 else "claim_level"
    return say(
        "claim",
        learned=LEARNED,
        leads=f"{', '.join(most)} and {last}",
        fixed=_lead(leads["fixed"]),
        n_slices=n_slices,
        n_volumes=n_volumes,
        verdict=say(held if is_clear else "claim_fails"),
    )


def _lead(lead: Difference) -> str:
    side = "above" if lead.difference >= 0 else "below"
    ends = "" if lead.interval is None else " ({:+.4f} to {:+.4f})".format(*lead.interval)
    return f"{abs(lead.difference):.4f} {side}{ends}".replace("-", "−")


def commands_section(settings: DemoSettings, folder: DemoFolder) -> Section:
    """Show how each step is redone by hand, and what differs from the paper."""
    codes = {}
    for title, words in commands_of(settings, folder).items():
        if title == EVALUATE:
            # The evaluation reads the file that this writes, so it stands before it.
            script = untrained_script(settings, folder)
            codes["Write the untrained network (Python)"] = script
        codes[title] = as_shell(words)
    widgets = [Widget(_code(title, text)) for title, text in codes.items()]
    prose = Prose(say("differs", **vars(settings))), Prose(say("commands"))
    return Section("How this was made", (*prose, *widgets))


def _code(title: str, text: str) -> str:
    return f'<p style="margin:0 0 .3rem"><b>{escape(title)}</b></p>{code_html(text)}'
