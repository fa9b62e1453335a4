package io.headwater.spark;

import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStreamWithTriggerAvailableNow;
import org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The source of a streaming query. Python decides its positions and reads its records, as for every
 * stream of the Python source; the batches reach Spark as columns.
 */
final class LogStream extends PythonMicroBatchStreamWithTriggerAvailableNow {
  private LogStream(
      PythonDataSourceV2 source,
      StructType columns,
      CaseInsensitiveStringMap options,
      PythonStreamingSourceRunner runner) {
    super(source, PythonSource.FORMAT, columns, options, runner);
  }

  /** Starts Python's part, which is a process that lives as long as the query. */
  static LogStream begun(
      PythonDataSourceV2 source, StructType columns, CaseInsensitiveStringMap options) {
    PythonStreamingSourceRunner runner =
        PythonMicroBatchStream.createPythonStreamingSourceRunner(
            source, PythonSource.FORMAT, columns, options);
    runner.init();
    return new LogStream(source, columns, options, runner);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return PythonColumns.readers(super.createReaderFactory());
  }
}
