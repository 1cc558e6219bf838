"""`python -m jprec.cli` is `jprec`."""

from jprec.cli.main import main

if __name__ == "__main__":
    main()
