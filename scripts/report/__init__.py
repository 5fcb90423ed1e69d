"""Reports: one self-contained HTML page, and a table for the terminal."""

from hydragnn.scripts.report.page import summary, write_report

__all__ = ["summary", "write_report"]
