"""Judging policies: one long table, paired statistics over volumes, and the paper's analyses."""
