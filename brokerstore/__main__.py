"""`python -m brokerstore` is the tool."""

import sys

from .tool import main

sys.exit(main())
