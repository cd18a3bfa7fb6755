"""`python -m kvscope`: the same as the command `kvscope`."""

from kvscope.cli.app import main

if __name__ == "__main__":
    main()
