"""Figures and pictures for pages and papers, drawn without torch."""
