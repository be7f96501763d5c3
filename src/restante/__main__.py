"""`python -m restante` is `restante`."""

from restante.cli.main import main

main()
