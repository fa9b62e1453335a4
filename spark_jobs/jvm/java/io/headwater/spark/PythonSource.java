package io.headwater.spark;

import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.DataSource$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * One read that the Python data source {@code headwater} has planned. All that we use of Spark's
 * internal classes for Python sources is here: the look-up, which Spark's own reader does in the
 * same way, and what Spark keeps of a planned read.
 */
final class PythonSource {
  static final String FORMAT = "headwater";
  private static final int DIVISIONS_MAX = 16;

  private final PythonDataSourceV2 source;
  private final CaseInsensitiveStringMap options;
  private final StructType schema;
  private final Map<String, Division> divisions = // the last few, guarded by the source
      new LinkedHashMap<>() {
        private static final long serialVersionUID = 1L;

        @Override
        protected boolean removeEldestEntry(Map.Entry<String, Division> eldest) {
          return size() > DIVISIONS_MAX;
        }
      };

  /** Plans a read with these options, in Python. */
  PythonSource(CaseInsensitiveStringMap options) {
    this.source =
        (PythonDataSourceV2) DataSource$.MODULE$.lookupDataSourceV2(FORMAT, SQLConf.get()).get();
    this.options = options;
    this.schema = source.inferSchema(options);
  }

  /** Returns the schema as Python has made it; the first field has the plan as metadata. */
  StructType schema() {
    return schema;
  }

  /** Begins to follow the stream as a streaming query does. */
  MicroBatchStream stream(StructType columns) {
    return LogStream.begun(source, columns, options);
  }

  /** Begins a scan of the planned rows with some of the columns. */
  private ScanBuilder scan(StructType columns) {
    SupportsRead table =
        (SupportsRead)
            source.getTable(columns, new Transform[0], options.asCaseSensitiveMap());
    return table.newScanBuilder(options);
  }

  /**
   * Divides a scan into Spark's partitions, in Python, once for the same columns and bounds. Spark
   * itself keeps the first division of a source for all its scans, whatever their columns are, so that
   * it is taken away before and after.
   *
   * @param told the columns of the scan, with what Python is told of it
   */
  Division divide(StructType told) {
    synchronized (source) {
      return divisions.computeIfAbsent(told.json(), key -> divided(told));
    }
  }

  private Division divided(StructType told) {
    source.setReadInfo(null);
    try {
      Batch batch = scan(told).build().toBatch();
      return new Division(
          batch.planInputPartitions(), PythonColumns.readers(batch.createReaderFactory()));
    } finally {
      source.setReadInfo(null);
    }
  }

  /** The partitions of a scan, and what reads them on executors. */
  record Division(InputPartition[] partitions, PartitionReaderFactory readers) {}

  /** Returns an exception to be thrown where a method does not declare it, as Scala code does. */
  @SuppressWarnings("unchecked")
  static <E extends Exception> RuntimeException undeclared(Exception cause) throws E {
    throw (E) cause;
  }
}
