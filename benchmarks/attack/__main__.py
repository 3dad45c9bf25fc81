"""`python -m benchmarks.attack`."""

from benchmarks.attack.cli import main

if __name__ == "__main__":
    main()
