"""`python -m marginlens` is the command `marginlens`."""

from marginlens.cli import main

if __name__ == "__main__":
    main()
