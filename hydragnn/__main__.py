"""The command ``hydragnn``, for checkouts that are not installed."""

from hydragnn.scripts.__main__ import main

main()
