"""The site: what mkdocs makes of docs, of the code and of the records."""
