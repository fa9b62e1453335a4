"""Found by Spark's Python processes at their start: PySpark comes from the environment, not a zip.

Spark puts pyspark.zip before everything else. It is the same code without its bytecode, so that
each of the processes that a killed query needs anew compiles it anew: 0.9 s of CPU instead of 0.4.
"""

import importlib
import sys
from contextlib import suppress

sys.path[:] = [one for one in sys.path if not one.endswith("pyspark.zip")]

# Python imports one file of this name. With a planted bug, its folder is on the path, too.
with suppress(ModuleNotFoundError):
    importlib.import_module("planted_bugs").plant_what_is_asked_for()
