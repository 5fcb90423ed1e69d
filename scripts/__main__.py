"""``python -m hydragnn.scripts``: the command line where the command itself is not on the path, or was moved."""

from hydragnn.scripts.cli import main

if __name__ == "__main__":
    main()
