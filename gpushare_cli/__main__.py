"""``python -m gpushare_cli``: the same program without the installed script."""

import sys

from gpushare_cli.main import main

if __name__ == "__main__":
    sys.exit(main())
