package io.headwater.spark;

import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Function;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * What Python has planned of a read: per partition a range, whose first part the JVM may read from
 * files. {@code spark_jobs/source/jvm_plan.py} makes it and says how it travels. The numbers are
 * checked here before they are used: a plan that contradicts itself is an error, not a read.
 *
 * @param columns the columns of the read, without metadata
 * @param isPlanned false if Python returned no plan, so that it reads everything by itself
 * @param why why Python reads the files; empty if the JVM does, or if there are none
 * @param lease the lease of the read, for renewals
 * @param heldMs a time of this machine's clock at which the lease was held
 * @param parts the ranges, by ascending partition
 * @param files the files of all cold ranges
 */
record ReadPlan(
    StructType columns, boolean isPlanned, String why, String lease, long heldMs, Part[] parts,
    File[] files) {

  private static final String KEY = "headwater";
  private static final String NOT_PLANNED = "the files of this read were not planned";
  private static final int FILES_MAX = 100_000;
  private static final int PARTS_MAX = 100_000;

  /** Offsets of one partition: {@code [start, seam)} is in files, {@code [seam, end)} in the log. */
  record Part(int partition, long start, long seam, long end) {}

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
    if (!first.contains(KEY)) {
      return new ReadPlan(plain, false, NOT_PLANNED, "", 0, new Part[0], new File[0]);
    }
    Metadata plan = first.getMetadata(KEY);
    Part[] parts = parts(plan.getMetadata("parts"));
    File[] files = plan.contains("files") ? files(plan) : new File[0];
    requireCovered(parts, files);
    String why = plan.getString("why");
    long heldMs = System.currentTimeMillis();
    return new ReadPlan(plain, true, why, plan.getString("lease"), heldMs, parts, files);
  }

  /** Returns the plan by which Python reads the files, if the check of one file gives a reason. */
  ReadPlan readableBy(Function<File, String> whyUnreadable) {
    String found = files.length == 0 ? "" : whyUnreadable.apply(files[0]);
    if (found.isEmpty()) {
      return this;
    }
    Part[] all =
        Arrays.stream(parts)
            .map(part -> new Part(part.partition, part.start, part.start, part.end))
            .toArray(Part[]::new);
    return new ReadPlan(columns, isPlanned, found, lease, heldMs, all, new File[0]);
  }

  /** Returns the part of a file's partition. */
  Part partOf(File file) {
    Part wanted = new Part(file.partition, 0, 0, 0);
    return parts[Arrays.binarySearch(parts, wanted, Comparator.comparingInt(Part::partition))];
  }

  /** Tells whether a file has offsets that are no part of the read. */
  boolean isCut(File file) {
    Part part = partOf(file);
    return file.start < part.start || file.end > part.seam;
  }

  /** Returns the columns with the ranges that are left to Python, as metadata of the first. */
  StructType leave(StructType wanted, Bounds bounds) {
    Part[] left =
        Arrays.stream(parts)
            .map(part -> bounds.narrow(part.partition, part.seam, part.end))
            .toArray(Part[]::new);
    Metadata ranges =
        new MetadataBuilder()
            .putLongArray("partition", Arrays.stream(left).mapToLong(Part::partition).toArray())
            .putLongArray("start", Arrays.stream(left).mapToLong(Part::seam).toArray())
            .putLongArray("end", Arrays.stream(left).mapToLong(Part::end).toArray())
            .build();
    StructField first = wanted.fields()[0];
    DataType type = first.dataType();
    StructType told =
        new StructType()
            .add(first.name(), type, true, new MetadataBuilder().putMetadata(KEY, ranges).build());
    for (int at = 1; at < wanted.size(); at++) {
      told = told.add(wanted.fields()[at]);
    }
    return told;
  }

  private static Part[] parts(Metadata given) {
    long[] partition = given.getLongArray("partition");
    long[] start = given.getLongArray("start");
    long[] seam = given.getLongArray("seam");
    long[] end = given.getLongArray("end");
    require(partition.length <= PARTS_MAX, "it has too many partitions");
    requireLength(partition.length, start.length, seam.length, end.length);
    Part[] found = new Part[partition.length];
    for (int at = 0; at < found.length; at++) {
      found[at] = new Part(Math.toIntExact(partition[at]), start[at], seam[at], end[at]);
      boolean rises = at == 0 || partition[at - 1] < partition[at];
      require(rises && partition[at] >= 0, "its partitions do not rise");
      boolean inOrder = 0 <= start[at] && start[at] <= seam[at] && seam[at] <= end[at];
      require(inOrder, "a range is none: " + found[at]);
    }
    return found;
  }

  private static File[] files(Metadata plan) {
    Metadata given = plan.getMetadata("files");
    String root = plan.getString("root");
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
  private static void requireCovered(Part[] parts, File[] files) {
    Map<Integer, Long> rows = new HashMap<>();
    for (File file : files) {
      rows.merge(file.partition, file.rows, Math::addExact);
    }
    for (Part part : parts) {
      long held = rows.getOrDefault(part.partition, 0L);
      require(held >= part.seam - part.start, "its files lack rows of " + part);
      rows.remove(part.partition);
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
