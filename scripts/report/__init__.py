"""Reports: one self-contained HTML page, and a table for the terminal."""

from hydragnn.scripts.report.page import write_report
from hydragnn.scripts.report.terminal import summary_table

__all__ = ["summary_table", "write_report"]
