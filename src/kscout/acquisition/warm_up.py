"""Capture the CUDA graphs of an advisor before a session needs them."""

import torch

from kscout.acquisition.advisor import Advisor
from kscout.acquisition.scan import Scan
from kscout.acquisition.session import Session


def warm_up(advisor: Advisor, scan: Scan) -> None:
    """Let an advisor with graphs compute the first two decisions of a scan of ones."""

    def work() -> None:
        session = Session(advisor, scan)
        allowed = scan.allowed().tolist()
        left = [x for x in range(scan.n_cols) if allowed[x] and x not in scan.start]
        n_more = min(scan.columns_per_step, scan.budget - len(scan.start))
        for columns in (scan.start, left[:n_more]):
            session.measure(columns, torch.ones(len(columns), scan.n_coils, scan.n_rows) + 0j)
            advisor.respond([session.request()])

    advisor.warm_up(work)
