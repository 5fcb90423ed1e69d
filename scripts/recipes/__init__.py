"""From raw published data to measured errors, one command each: ``python -m hydragnn.scripts.recipes NAME``."""
