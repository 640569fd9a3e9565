"""`python -m marginlens` is the command `marginlens`."""

from marginlens.cli.app import main

if __name__ == "__main__":
    main()
