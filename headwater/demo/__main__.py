"""``python -m headwater.demo`` runs the guided tour, which is in tour.py."""

from __future__ import annotations

import sys

from headwater.loading import ends_without_a_trace

if __name__ == "__main__":
    with ends_without_a_trace():
        from headwater.demo.tour import main
    sys.exit(main())
