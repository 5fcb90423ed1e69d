"""Reports: one self-contained HTML page, and a table for the terminal."""

from hydragnn.scripts.report.terminal import summary_table
from hydragnn.scripts.report.write import write_report

__all__ = ["summary_table", "write_report"]
