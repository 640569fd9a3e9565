"""`python -m marginlens_papers.documentation`."""

from marginlens_papers.documentation import main

main()
