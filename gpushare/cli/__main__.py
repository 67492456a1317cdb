"""``python -m gpushare.cli``: the same program without the installed script."""

import sys

from gpushare.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
