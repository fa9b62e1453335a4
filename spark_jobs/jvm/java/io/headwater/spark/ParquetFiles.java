package io.headwater.spark;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.stream.LongStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.VariantExtraction;
import org.apache.spark.sql.errors.QueryExecutionErrors;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.datasources.v2.parquet.ParquetScan;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Spark's Parquet reader over files that we name. All that we use of Spark's internal classes for
 * files is here. The reader is strict whatever the session's settings are: it checks the checksum of
 * each page, passes over no file and changes no time between calendars.
 */
final class ParquetFiles {
  private static final String PARTITION = "partition";
  private static final Map<String, String> STRICT =
      Map.of(
          "ignoreMissingFiles", "false",
          "ignoreCorruptFiles", "false",
          "datetimeRebaseMode", "CORRECTED",
          "int96RebaseMode", "CORRECTED");

  private ParquetFiles() {}

  /**
   * Returns what reads pieces of files on executors.
   *
   * @param all the columns of the table
   * @param columns the columns to read; the partition, if wanted, is the last
   * @param filters by which row groups may be passed over
   */
  static PartitionReaderFactory readers(StructType all, StructType columns, Filter[] filters) {
    Configuration conf = configuration();
    conf.setBoolean("parquet.page.verify-checksum.enabled", true);
    boolean hasPartition = columns.getFieldIndex(PARTITION).isDefined();
    StructType ofFolder = new StructType();
    ParquetScan scan =
        new ParquetScan(
            SparkSession.active(),
            conf,
            null, // we list the files
            withoutPartition(all),
            withoutPartition(columns),
            hasPartition ? ofFolder.add(columns.apply(PARTITION)) : ofFolder,
            filters,
            new CaseInsensitiveStringMap(STRICT),
            Option.empty(),
            empty(),
            empty(),
            new VariantExtraction[0]);
    return scan.createReaderFactory();
  }

  /** Returns the piece of a file as the reader takes it. */
  static InputPartition named(ColdTask.Piece piece, StructType columns) {
    boolean hasPartition = columns.getFieldIndex(PARTITION).isDefined();
    Object[] ofFolder = hasPartition ? new Object[] {piece.partition()} : new Object[0];
    PartitionedFile file =
        new PartitionedFile(
            new GenericInternalRow(ofFolder),
            SparkPath.fromPathString(piece.path()),
            piece.start(),
            piece.length(),
            new String[0],
            0L,
            piece.bytes(),
            Map$.MODULE$.<String, Object>empty());
    return new FilePartition(0, new PartitionedFile[] {file});
  }

  /** Returns how many bytes a task should read, by Spark's settings, of files with these sizes. */
  static long splitBytes(LongStream sizes) {
    long total = sizes.map(size -> size + openCostBytes()).sum();
    return FilePartition.maxSplitBytes(SparkSession.active(), () -> (Object) total);
  }

  /** Returns the bytes that could be read in the time that it takes to open a file. */
  static long openCostBytes() {
    return classic().sessionState().conf().filesOpenCostInBytes();
  }

  /** Returns why this JVM cannot read a file; empty if it can. Asks the store once. */
  static String whyUnreadable(ReadPlan.File file) {
    try {
      Path path = new Path(file.path());
      long found = path.getFileSystem(configuration()).getFileStatus(path).getLen();
      return found == file.bytes() ? "" : path + " has " + found + " bytes in this JVM's store";
    } catch (IOException | RuntimeException failed) {
      return "this JVM cannot reach the table: " + failed;
    }
  }

  /** Returns Spark's error for a file that has not the rows that the table's log states. */
  static RuntimeException wrongCount(ColdTask.Piece piece, long found) {
    String text = "it has " + found + " rows, and the table's log says " + piece.rows();
    Throwable error = QueryExecutionErrors.cannotReadFilesError(new IOException(text), piece.path());
    return PythonSource.undeclared((Exception) error);
  }

  private static StructType withoutPartition(StructType columns) {
    StructType found = new StructType();
    for (StructField field : columns.fields()) {
      found = field.name().equals(PARTITION) ? found : found.add(field);
    }
    return found;
  }

  private static Configuration configuration() {
    return classic().sessionState().newHadoopConf();
  }

  private static org.apache.spark.sql.classic.SparkSession classic() {
    return (org.apache.spark.sql.classic.SparkSession) SparkSession.active();
  }

  private static <T> Seq<T> empty() {
    return CollectionConverters.asScala(List.<T>of()).toSeq();
  }
}
