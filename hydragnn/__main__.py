"""``python -m hydragnn`` is the command ``hydragnn``, for checkouts that are not installed."""

from hydragnn.scripts.cli import main

main()
