package io.headwater.spark;

import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Function;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * What Python has planned of a read: the files that the JVM may read, and which offsets of them are
 * wanted. {@code spark_jobs/source/jvm_plan.py} makes it and says how it travels. The numbers are
 * checked here before they are used: a plan that contradicts itself is an error, not a read.
 *
 * @param columns the columns of the read, without metadata
 * @param why why Python reads the files; empty if the JVM does, or if there are none
 * @param lease the lease of the read, for renewals
 * @param heldMs a time of this machine's clock at which the lease was held
 * @param cold the ranges that are in files, by ascending partition
 * @param files the files of these ranges; without any, Python reads everything
 */
record ReadPlan(
    StructType columns, String why, String lease, long heldMs, Cold[] cold, File[] files) {

  private static final String KEY = "headwater";
  private static final int FILES_MAX = 100_000;
  private static final int PARTITIONS_MAX = 100_000;

  /** The offsets {@code [start, end)} of one partition are in files. */
  record Cold(int partition, long start, long end) {}

  /** A file with the bounds of its offsets {@code [start, end)} and, inclusive, of its times. */
  record File(
      String path, long bytes, int partition, long rows, long start, long end, long minUs,
      long maxUs) {}

  /** Parses the schema that Python has returned. */
  static ReadPlan of(StructType schema) {
    StructType plain = new StructType();
    for (StructField field : schema.fields()) {
      plain = plain.add(field.name(), field.dataType());
    }
    Metadata first = schema.isEmpty() ? Metadata.empty() : schema.fields()[0].metadata();
    Metadata plan = first.contains(KEY) ? first.getMetadata(KEY) : Metadata.empty();
    String why = plan.contains("why") ? plan.getString("why") : "";
    if (!plan.contains("files")) {
      return new ReadPlan(plain, why, "", 0, new Cold[0], new File[0]);
    }
    Cold[] cold = cold(plan.getMetadata("cold"));
    File[] files = files(plan.getMetadata("files"), plan.getString("root"));
    requireCovered(cold, files);
    long heldMs = System.currentTimeMillis();
    return new ReadPlan(plain, why, plan.getString("lease"), heldMs, cold, files);
  }

  /** Returns the plan by which Python reads the files, if the check of one file gives a reason. */
  ReadPlan readableBy(Function<File, String> whyUnreadable) {
    String found = files.length == 0 ? "" : whyUnreadable.apply(files[0]);
    if (found.isEmpty()) {
      return this;
    }
    return new ReadPlan(columns, found, lease, heldMs, new Cold[0], new File[0]);
  }

  /** Returns the wanted offsets of a file's partition. */
  Cold wantedOf(File file) {
    Cold wanted = new Cold(file.partition, 0, 0);
    return cold[Arrays.binarySearch(cold, wanted, Comparator.comparingInt(Cold::partition))];
  }

  /** Tells whether a file has offsets that are no part of the read. */
  boolean isCut(File file) {
    Cold wanted = wantedOf(file);
    return file.start < wanted.start || file.end > wanted.end;
  }

  /** Returns the columns of a scan, with what Python is told of it as metadata of the first. */
  StructType tell(StructType wanted, Bounds bounds) {
    Metadata told =
        bounds.describe(new MetadataBuilder()).putBoolean("files", files.length > 0).build();
    StructType found = new StructType();
    for (StructField field : wanted.fields()) {
      Metadata mine =
          found.isEmpty()
              ? new MetadataBuilder().putMetadata(KEY, told).build()
              : Metadata.empty();
      found = found.add(field.name(), field.dataType(), true, mine);
    }
    return found;
  }

  private static Cold[] cold(Metadata given) {
    long[] partition = given.getLongArray("partition");
    long[] start = given.getLongArray("start");
    long[] end = given.getLongArray("seam");
    require(partition.length <= PARTITIONS_MAX, "it has too many partitions");
    requireLength(partition.length, start.length, end.length);
    Cold[] found = new Cold[partition.length];
    for (int at = 0; at < found.length; at++) {
      found[at] = new Cold(Math.toIntExact(partition[at]), start[at], end[at]);
      boolean rises = at == 0 || partition[at - 1] < partition[at];
      require(rises && partition[at] >= 0, "its partitions do not rise");
      require(0 <= start[at] && start[at] < end[at], "a range is none: " + found[at]);
    }
    return found;
  }

  private static File[] files(Metadata given, String root) {
    String[] path = given.getStringArray("path");
    long[] bytes = given.getLongArray("size_bytes");
    long[] partition = given.getLongArray("partition");
    long[] rows = given.getLongArray("records_count");
    long[] start = given.getLongArray("min_offset");
    long[] end = given.getLongArray("end_offset");
    long[] minUs = given.getLongArray("min_us");
    long[] maxUs = given.getLongArray("max_us");
    require(path.length <= FILES_MAX, "it has too many files");
    requireLength(path.length, bytes.length, partition.length, rows.length, start.length);
    requireLength(path.length, end.length, minUs.length, maxUs.length);
    File[] found = new File[path.length];
    for (int at = 0; at < found.length; at++) {
      found[at] =
          new File(
              root + "/" + path[at],
              bytes[at],
              Math.toIntExact(partition[at]),
              rows[at],
              start[at],
              end[at],
              minUs[at],
              maxUs[at]);
      boolean holds = 0 <= start[at] && start[at] < end[at] && rows[at] > 0 && bytes[at] > 0;
      require(holds && rows[at] <= end[at] - start[at], "a file holds nothing: " + found[at]);
    }
    return found;
  }

  /** The files of a partition have at least as many rows as its cold range has offsets. */
  private static void requireCovered(Cold[] cold, File[] files) {
    Map<Integer, Long> rows = new HashMap<>();
    for (File file : files) {
      rows.merge(file.partition, file.rows, Math::addExact);
    }
    for (Cold range : cold) {
      Long held = rows.remove(range.partition);
      boolean covers = held != null && held >= range.end - range.start;
      require(covers, "its files lack rows of " + range);
    }
    require(rows.isEmpty(), "it has files of partitions that are not read: " + rows.keySet());
  }

  private static void requireLength(int expected, int... lengths) {
    boolean equal = Arrays.stream(lengths).allMatch(one -> one == expected);
    require(equal, "its lists have different lengths");
  }

  private static void require(boolean holds, String otherwise) {
    if (!holds) {
      throw new IllegalArgumentException("the plan of the read is malformed: " + otherwise);
    }
  }
}
