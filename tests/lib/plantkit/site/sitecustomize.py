"""Python imports this at its start while a campaign, or `make plant`, has it on the path."""

import importlib

importlib.import_module("planted_bugs").plant_what_is_asked_for()
importlib.import_module("planted_text").plant_what_is_asked_for()
