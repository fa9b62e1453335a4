package io.headwater.spark;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Takes the columns and the filters of one statement. */
final class StreamScanBuilder implements SupportsPushDownRequiredColumns, SupportsPushDownFilters {
  private static final String PARTITION = "partition";
  private static final String OFFSET = "offset";

  private final PythonSource source;
  private final ReadPlan plan;
  private StructType wanted;
  private Bounds bounds = Bounds.NONE;

  StreamScanBuilder(PythonSource source, ReadPlan plan) {
    this.source = source;
    this.plan = plan;
    this.wanted = plan.columns();
  }

  @Override
  public void pruneColumns(StructType required) {
    wanted = required;
  }

  /** Spark applies each filter again: bounds only spare work. */
  @Override
  public Filter[] pushFilters(Filter[] filters) {
    bounds = new Bounds(filters);
    return filters;
  }

  @Override
  public Filter[] pushedFilters() {
    return bounds.filters();
  }

  @Override
  public Scan build() {
    return new StreamScan(source, plan, columns(), bounds);
  }

  /**
   * Returns the wanted columns, whole: Spark may want single fields of the headers. The partition is
   * the last, because it is not in the files but in their folder's name. It also counts rows, where no
   * column is wanted. To cut a file at an offset, the offset has to be read.
   */
  private StructType columns() {
    Set<String> names =
        Arrays.stream(wanted.fieldNames()).collect(Collectors.toCollection(HashSet::new));
    if (Arrays.stream(plan.files()).anyMatch(plan::isCut)) {
      names.add(OFFSET);
    }
    if (names.isEmpty()) {
      boolean has = plan.columns().getFieldIndex(PARTITION).isDefined();
      names.add(has ? PARTITION : plan.columns().fieldNames()[0]);
    }
    StructType found = new StructType();
    for (StructField field : plan.columns().fields()) {
      if (names.contains(field.name()) && !field.name().equals(PARTITION)) {
        found = found.add(field);
      }
    }
    return names.contains(PARTITION) ? found.add(plan.columns().apply(PARTITION)) : found;
  }
}
