package io.headwater.spark;

import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.types.DataType$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.Iterator$;

/**
 * Hands on the record batches of a Python source's task as columns. The worker's process and what it
 * runs are Spark's own; Spark's own reader then copies each row, and this one copies none.
 */
final class PythonColumns implements PartitionReader<ColumnarBatch> {
  private static final String READ = "read_from_data_source"; // the name that Spark's readers give
  private static final int[][] ONE_ARGUMENT = {{0}};

  private final Iterator<ColumnarBatch> batches;
  private final StructType columns;
  private ColumnarBatch open;

  private PythonColumns(Iterator<ColumnarBatch> batches, StructType columns) {
    this.batches = batches;
    this.columns = columns;
  }

  /** Returns readers that give columns, for the partitions of a Python source's batch or stream. */
  static PartitionReaderFactory readers(PartitionReaderFactory python) {
    return new Readers(python);
  }

  /** Asks for the next batch only now: the memory of the last one is used again. */
  @Override
  public boolean next() {
    if (!batches.hasNext()) {
      return false;
    }
    open = columnsOf(batches.next());
    return true;
  }

  @Override
  public ColumnarBatch get() {
    return open;
  }

  /** Leaves the worker to Spark, which ends it with the task, as with its own readers. */
  @Override
  public void close() {}

  /** Returns the fields of a batch of one struct as the columns. */
  private ColumnarBatch columnsOf(ColumnarBatch read) {
    ArrowColumnVector struct = (ArrowColumnVector) read.column(0);
    if (!DataType$.MODULE$.equalsIgnoreCompatibleNullability(struct.dataType(), columns)) {
      throw new IllegalStateException(
          "the Python source returned " + struct.dataType() + ", and not " + columns);
    }
    ColumnVector[] vectors = new ColumnVector[columns.size()];
    for (int at = 0; at < vectors.length; at++) {
      vectors[at] = struct.getChild(at);
    }
    return new ColumnarBatch(vectors, read.numRows());
  }

  /** Begins Python's task for one partition, in the way of Spark's own readers. */
  private static PythonColumns opened(
      UserDefinedPythonDataSource source,
      byte[] function,
      StructType columns,
      Option<String> artifacts,
      Option<String> session,
      int index,
      byte[] partition) {
    MapInBatchEvaluatorFactory made =
        source.createMapInBatchEvaluatorFactory(
            function,
            READ,
            UserDefinedPythonDataSource.readInputSchema(),
            columns,
            PythonCustomMetric.pythonMetrics(),
            artifacts,
            session);
    ArrowPythonRunner runner =
        new ArrowPythonRunner(
            made.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$chainedFunc,
            made.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$pythonEvalType,
            ONE_ARGUMENT,
            new StructType()
                .add(
                    "struct",
                    made.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$inputSchema),
            made.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$sessionLocalTimeZone,
            made.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$largeVarTypes,
            made.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$pythonRunnerConf,
            made.pythonMetrics(),
            made.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$jobArtifactUUID,
            made.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$sessionUUID);
    InternalRow argument =
        new GenericInternalRow(
            new Object[] {new GenericInternalRow(new Object[] {partition})});
    Iterator<InternalRow> rows = Iterator$.MODULE$.single(argument);
    Iterator<Iterator<InternalRow>> input = Iterator$.MODULE$.single(rows);
    return new PythonColumns(runner.compute(input, index, TaskContext.get()), columns);
  }

  /** Spark's readers of a Python source, with columns beside their rows. */
  private record Readers(PartitionReaderFactory python) implements PartitionReaderFactory {
    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return true;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      return python.createReader(partition);
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      if (python instanceof PythonPartitionReaderFactory of) {
        PythonInputPartition part = (PythonInputPartition) partition;
        return opened(
            of.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$source,
            of.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$pickledReadFunc,
            of.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$outputSchema,
            of.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$jobArtifactUUID,
            of.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$sessionUUID,
            part.index(),
            part.pickedPartition());
      }
      PythonStreamingPartitionReaderFactory of = (PythonStreamingPartitionReaderFactory) python;
      PythonStreamingInputPartition part = (PythonStreamingInputPartition) partition;
      return opened(
          of.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$source,
          of.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$pickledReadFunc,
          of.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$outputSchema,
          of.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$jobArtifactUUID,
          of.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$sessionUUID,
          part.index(),
          part.pickedPartition());
    }
  }
}
