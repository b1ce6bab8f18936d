"""The analyses, one file each: options, what is computed, table, figures and report section.

`kscout.names.ANALYSES` lists them. The command line, campaigns and reports read that table, so that
no other file names an analysis. Nothing here imports torch or matplotlib until an analysis computes
or draws.
"""

from kscout.config.options import Option, options_of, with_options
from kscout.evaluation.analyses.analysis import (
    Analysis,
    Material,
    Page,
    PolicyAnalysis,
    SliceSetting,
    Split,
)
from kscout.evaluation.analyses.files import (
    Tabulated,
    find_tables,
    protocol_of_table,
    protocols_in,
    run_analysis,
    write_table,
)
