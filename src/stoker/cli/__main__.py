"""`python -m stoker.cli`."""

from stoker.cli import main

main()
