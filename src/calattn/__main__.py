"""`python -m calattn`: the command line."""

from calattn.cli import main

if __name__ == "__main__":
    main()
