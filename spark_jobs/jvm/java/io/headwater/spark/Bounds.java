package io.headwater.spark;

import java.sql.Timestamp;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.OptionalLong;
import org.apache.spark.sql.sources.EqualNullSafe;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.types.MetadataBuilder;

/**
 * The least and greatest partition, offset and time that a statement's filters let through. They
 * only spare work: Spark applies each filter to the rows again. A filter of another form, or whose
 * value is not surely understood, bounds nothing.
 */
final class Bounds {
  static final Bounds NONE = new Bounds(new Filter[0]);

  /** Spark converts times before 1900 between calendars, and so would the comparison here. */
  private static final Instant UNDERSTOOD_FROM = Instant.parse("1900-02-01T00:00:00Z");

  private final Map<String, Interval> intervals =
      new HashMap<>(
          Map.of("partition", Interval.ALL, "offset", Interval.ALL, "timestamp", Interval.ALL));
  private final List<Filter> understood = new ArrayList<>();

  /** Both ends are part of the interval. */
  private record Interval(long min, long max) {
    static final Interval ALL = new Interval(Long.MIN_VALUE, Long.MAX_VALUE);

    boolean overlaps(long least, long greatest) {
      return least <= max && greatest >= min;
    }

    Interval and(Interval other) {
      return new Interval(Math.max(min, other.min), Math.min(max, other.max));
    }
  }

  /** Takes what it understands of filters that all hold. */
  Bounds(Filter[] filters) {
    for (Filter filter : filters) {
      String[] names = filter.references();
      Interval found = names.length == 1 ? intervalOf(filter) : null;
      if (found != null && intervals.containsKey(names[0])) {
        intervals.compute(names[0], (name, before) -> before.and(found));
        understood.add(filter);
      }
    }
  }

  /** Returns the filters that bound something. */
  Filter[] filters() {
    return understood.toArray(Filter[]::new);
  }

  /** Returns those filters that compare a column which files have. */
  Filter[] filtersOfFiles() {
    return understood.stream()
        .filter(filter -> !filter.references()[0].equals("partition"))
        .toArray(Filter[]::new);
  }

  /** Tells whether a file may have rows that pass. */
  boolean mayHave(ReadPlan.File file) {
    return intervals.get("partition").overlaps(file.partition(), file.partition())
        && intervals.get("offset").overlaps(file.start(), file.end() - 1)
        && intervals.get("timestamp").overlaps(file.minUs(), file.maxUs());
  }

  /** Adds the bounds of partition and offset to what Python is told. */
  MetadataBuilder describe(MetadataBuilder told) {
    for (String name : List.of("partition", "offset")) {
      Interval bound = intervals.get(name);
      told.putLongArray(name, new long[] {bound.min, bound.max});
    }
    return told;
  }

  private static Interval intervalOf(Filter filter) {
    if (filter instanceof EqualTo is) {
      return between(is.value(), is.value());
    }
    if (filter instanceof EqualNullSafe is) {
      return between(is.value(), is.value());
    }
    if (filter instanceof GreaterThanOrEqual least) {
      return from(least.value(), 0);
    }
    if (filter instanceof GreaterThan below) {
      return from(below.value(), 1);
    }
    if (filter instanceof LessThanOrEqual greatest) {
      return to(greatest.value(), 0);
    }
    if (filter instanceof LessThan above) {
      return to(above.value(), 1);
    }
    return filter instanceof In any ? hull(any.values()) : null;
  }

  private static Interval between(Object least, Object greatest) {
    OptionalLong min = number(least);
    OptionalLong max = number(greatest);
    boolean both = min.isPresent() && max.isPresent();
    return both ? new Interval(min.getAsLong(), max.getAsLong()) : null;
  }

  /** Values that are greater by {@code more} at least; an overflow bounds nothing. */
  private static Interval from(Object least, long more) {
    OptionalLong min = number(least);
    boolean fits = min.isPresent() && min.getAsLong() <= Long.MAX_VALUE - more;
    return fits ? new Interval(min.getAsLong() + more, Long.MAX_VALUE) : null;
  }

  /** Values that are less by {@code more} at least; an overflow bounds nothing. */
  private static Interval to(Object greatest, long more) {
    OptionalLong max = number(greatest);
    boolean fits = max.isPresent() && max.getAsLong() >= Long.MIN_VALUE + more;
    return fits ? new Interval(Long.MIN_VALUE, max.getAsLong() - more) : null;
  }

  /** A null among the values equals nothing. */
  private static Interval hull(Object[] values) {
    OptionalLong[] found =
        Arrays.stream(values)
            .filter(Objects::nonNull)
            .map(Bounds::number)
            .toArray(OptionalLong[]::new);
    if (found.length == 0 || !Arrays.stream(found).allMatch(OptionalLong::isPresent)) {
      return null;
    }
    long[] sorted = Arrays.stream(found).mapToLong(OptionalLong::getAsLong).sorted().toArray();
    return new Interval(sorted[0], sorted[sorted.length - 1]);
  }

  /** Returns a whole number, or a time in microseconds; nothing for other values. */
  private static OptionalLong number(Object value) {
    if (value instanceof Integer || value instanceof Long) {
      return OptionalLong.of(((Number) value).longValue());
    }
    Instant time = value instanceof Timestamp stamp ? stamp.toInstant() : null;
    if (value instanceof Instant instant) {
      time = instant;
    }
    if (time == null || time.isBefore(UNDERSTOOD_FROM) || time.getNano() % 1000 != 0) {
      return OptionalLong.empty();
    }
    try {
      long whole = Math.multiplyExact(time.getEpochSecond(), 1_000_000L);
      return OptionalLong.of(Math.addExact(whole, time.getNano() / 1000));
    } catch (ArithmeticException tooFar) {
      return OptionalLong.empty();
    }
  }
}
