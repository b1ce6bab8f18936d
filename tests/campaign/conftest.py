"""Plans of a small campaign, in a folder of their own."""

from pathlib import Path
from typing import Any

import pytest
from small_campaign import TABLE, PlanOf

from kscout.apps.campaign.grid import parse_grid
from kscout.apps.campaign.plan import CampaignPlan, make_plan


@pytest.fixture
def plan_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanOf:
    """Return a function that plans the small campaign, sections of its file changed."""
    monkeypatch.chdir(tmp_path)

    def plan(root: str = "campaign", **changes: Any) -> CampaignPlan:
        table = {**TABLE}
        for section, values in changes.items():
            table[section] = {**TABLE.get(section, {}), **values}
        return make_plan(parse_grid("small", table), Path(root))

    return plan
