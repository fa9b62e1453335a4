package io.headwater.spark;

import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * One stream at one moment, planned by the data source {@code headwater}. It can be read as a batch
 * and followed as a stream; it is not written, because a table has no partitioner.
 */
final class StreamTable implements SupportsRead {
  /** Spark has given these to the catalog already, which loaded this table by them. */
  private static final Set<String> OF_THE_LOAD = Set.of("versionasof", "timestampasof");

  private final String name;
  private final CaseInsensitiveStringMap options;
  private final PythonSource source;
  private final ReadPlan plan;

  /** Plans a read of the stream; errors of the planner are Spark's, with ours in their text. */
  StreamTable(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    this.options = options;
    this.source = new PythonSource(options);
    ReadPlan planned = ReadPlan.of(source.schema());
    this.plan = planned.readableBy(ParquetFiles::whyUnreadable);
  }

  @Override
  public String name() {
    return name;
  }

  /** Returns the columns as one type. */
  StructType type() {
    return plan.columns();
  }

  @Override
  public Column[] columns() {
    return Arrays.stream(plan.columns().fields())
        .map(field -> Column.create(field.name(), field.dataType()))
        .toArray(Column[]::new);
  }

  @Override
  public Set<TableCapability> capabilities() {
    return EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ);
  }

  /**
   * Options of one reader, such as {@code startingOffsets} of a streaming query, need a plan of their
   * own: the source has taken its options when it was planned.
   */
  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    Map<String, String> merged = new HashMap<>(options);
    merged.putAll(given);
    merged.keySet().removeAll(OF_THE_LOAD);
    CaseInsensitiveStringMap all = new CaseInsensitiveStringMap(merged);
    if (all.equals(options)) {
      return new StreamScanBuilder(source, plan);
    }
    StreamTable own = new StreamTable(name, all);
    if (!Arrays.equals(own.columns(), columns())) {
      throw new IllegalArgumentException(
          "options may not change the columns of " + name + "; select columns in the statement");
    }
    return new StreamScanBuilder(own.source, own.plan);
  }
}
