"""`python -m switchyard` is the command `switchyard`."""

import sys

from switchyard.cli.main import main

sys.exit(main())
