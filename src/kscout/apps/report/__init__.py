"""From folders of results to a page, tables and figures, without loading any model."""
