"""`python -m restante` is `restante`."""

from restante.cli import main

main()
