"""Found by Spark's Python processes at their start: PySpark comes from the environment, not a zip.

Spark puts pyspark.zip before everything else. It is the same code without its bytecode, so that
each of the processes that a killed query needs anew compiles it anew: 0.9 s of CPU instead of 0.4.
"""

import sys

sys.path[:] = [one for one in sys.path if not one.endswith("pyspark.zip")]
