"""Reports: one self-contained HTML page, and a table for the terminal."""

from hydragnn.scripts.report.page import summary_table, write_report

__all__ = ["summary_table", "write_report"]
