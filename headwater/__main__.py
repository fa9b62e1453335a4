"""``python -m headwater``: the command, where no console script is on the path."""

from headwater.cli.main import main

if __name__ == "__main__":
    main()
