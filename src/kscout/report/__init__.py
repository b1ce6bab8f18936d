"""From folders of results to a page, tables and figures; no model is ever loaded here."""
