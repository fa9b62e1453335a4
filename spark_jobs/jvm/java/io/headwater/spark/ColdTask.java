package io.headwater.spark;

import java.io.Serializable;
import java.util.List;
import org.apache.spark.sql.connector.read.InputPartition;

/** The pieces of files that one Spark task reads. */
final class ColdTask implements InputPartition {
  private static final long serialVersionUID = 1L;

  private final Piece[] pieces;

  ColdTask(List<Piece> pieces) {
    this.pieces = pieces.toArray(Piece[]::new);
  }

  Piece[] pieces() {
    return pieces;
  }

  /**
   * Some bytes of a file, by which Parquet finds the row groups that begin there.
   *
   * @param from the first offset that is wanted
   * @param until the first offset above it that is not
   * @param rows the rows of the whole file, if they are read without a filter, else NOT_COUNTED
   */
  record Piece(
      String path, long bytes, long start, long length, int partition, long from, long until,
      long rows)
      implements Serializable {
    static final long NOT_COUNTED = -1;

    boolean isCut() {
      return from > 0 || until < Long.MAX_VALUE;
    }
  }
}
