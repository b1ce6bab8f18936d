"""The analyses, one file each: options, computation, table, figures and section of the report.

`kscout.names.ANALYSES` lists them. The command line, campaigns and reports read that table; no
other file names an analysis. Imports under `lazily()` happen when an analysis computes or draws,
because plans and reports do not import torch.
"""

from kscout.config.options import Option, options_of, with_options
from kscout.evaluation.analyses.analysis import Analysis, Page, PolicyAnalysis, ReportInputs, Split
from kscout.evaluation.analyses.files import (
    Tabulated,
    find_tables,
    protocol_of_table,
    protocols_in,
    run_analysis,
    write_table,
)
