package io.headwater.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/**
 * The rows of one statement: files by Spark's Parquet reader, the log by Python, both as columns.
 * Without files it is Python's scan, with the statement's columns and ranges.
 */
final class StreamScan implements Scan, Batch {
  private final PythonSource source;
  private final ReadPlan plan;
  private final StructType columns;
  private final Bounds bounds;
  private final List<ReadPlan.File> files;
  private PythonSource.Division division; // made at the first use, since it asks Python

  StreamScan(PythonSource source, ReadPlan plan, StructType columns, Bounds bounds) {
    this.source = source;
    this.plan = plan;
    this.columns = columns;
    this.bounds = bounds;
    this.files = Arrays.stream(plan.files()).filter(bounds::mayHave).toList();
  }

  @Override
  public StructType readSchema() {
    return columns;
  }

  /** Says in EXPLAIN who reads what. */
  @Override
  public String description() {
    String readers = plan.why().isEmpty() ? "by Python" : "by Python, because " + plan.why();
    if (plan.files().length > 0) {
      readers = files.size() + " of " + plan.files().length + " files by the JVM, log by Python";
    }
    return Arrays.toString(columns.fieldNames()) + " " + readers + ", pushed "
        + Arrays.toString(bounds.filters());
  }

  /** All readers give columns. */
  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return ColumnarSupportMode.SUPPORTED;
  }

  @Override
  public Batch toBatch() {
    return this;
  }

  /** Spark 4.2 neither chooses columns for a streaming query nor asks in which order they are. */
  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    return source.stream(plan.columns());
  }

  @Override
  public InputPartition[] planInputPartitions() {
    return divided().partitions();
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return divided().readers();
  }

  private synchronized PythonSource.Division divided() {
    if (division == null) {
      PythonSource.Division python = source.divide(plan.tell(columns, bounds));
      division = plan.files().length == 0 ? python : withFiles(python);
    }
    return division;
  }

  /** Python's first partition renews the lease; the others are ranges that are left to it. */
  private PythonSource.Division withFiles(PythonSource.Division python) {
    InputPartition renewal = python.partitions()[0];
    List<InputPartition> log =
        Arrays.asList(python.partitions()).subList(1, python.partitions().length);
    List<InputPartition> all = new ArrayList<>(packed());
    PartitionReaderFactory readers = python.readers();
    if (!all.isEmpty()) {
      LeaseRenewal keeper = new LeaseRenewal(plan.lease(), plan.heldMs(), renewal, readers);
      PartitionReaderFactory parquet =
          ParquetFiles.readers(plan.columns(), columns, bounds.filtersOfFiles());
      readers = new StreamReaders(columns, parquet, python.readers(), keeper);
    }
    all.addAll(log);
    return new PythonSource.Division(all.toArray(InputPartition[]::new), readers);
  }

  /** Divides the files into tasks of about equal size, large pieces first, as Spark does. */
  private List<ColdTask> packed() {
    long split = ParquetFiles.splitBytes(files.stream().mapToLong(ReadPlan.File::bytes));
    List<ColdTask.Piece> pieces = new ArrayList<>();
    for (ReadPlan.File file : files) {
      for (long at = 0; at < file.bytes(); at += split) {
        pieces.add(piece(file, at, Math.min(split, file.bytes() - at)));
      }
    }
    pieces.sort(Comparator.comparingLong(ColdTask.Piece::length).reversed());
    List<ColdTask> tasks = new ArrayList<>();
    List<ColdTask.Piece> open = new ArrayList<>();
    long room = split;
    for (ColdTask.Piece piece : pieces) {
      if (!open.isEmpty() && piece.length() > room) {
        tasks.add(new ColdTask(open));
        open.clear();
        room = split;
      }
      open.add(piece);
      room -= piece.length() + ParquetFiles.openCostBytes();
    }
    if (!open.isEmpty()) {
      tasks.add(new ColdTask(open));
    }
    return tasks;
  }

  private ColdTask.Piece piece(ReadPlan.File file, long start, long length) {
    ReadPlan.Cold wanted = plan.wantedOf(file);
    boolean isWhole = length == file.bytes() && bounds.filtersOfFiles().length == 0;
    return new ColdTask.Piece(
        file.path(),
        file.bytes(),
        start,
        length,
        file.partition(),
        plan.isCut(file) ? wanted.start() : 0,
        plan.isCut(file) ? wanted.end() : Long.MAX_VALUE,
        isWhole ? file.rows() : ColdTask.Piece.NOT_COUNTED);
  }
}
