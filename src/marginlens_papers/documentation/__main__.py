"""`python -m marginlens_papers.documentation`."""

from marginlens_papers.documentation import main

if __name__ == "__main__":
    main()
