"""`python -m retoma` is the `retoma` command."""

from retoma.cli import main

if __name__ == "__main__":
    main()
