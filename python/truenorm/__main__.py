"""`python -m truenorm`: see docs/tools.md."""

import sys


def main() -> int:
    try:
        from truenorm.tools.app import main as run
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("truenorm"):
            raise
        print(f"truenorm: {error.name} is not installed: pip install 'truenorm[tools]'", file=sys.stderr)
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
