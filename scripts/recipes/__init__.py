"""Studies on published data: files for ``hydragnn data build`` and ``hydragnn search``."""
