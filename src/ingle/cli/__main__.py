"""`python -m ingle.cli`."""

from __future__ import annotations

from ingle.cli.main import main

raise SystemExit(main())
