"""Python imports this at its start while ``--plant`` has this folder on the path."""

import importlib

importlib.import_module("planted_bugs").plant_what_is_asked_for()
