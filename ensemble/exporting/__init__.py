"""Models as files that other programs run without this project."""
