"""`python -m jprec` is `jprec`."""

from jprec.cli import main

if __name__ == "__main__":
    main()
