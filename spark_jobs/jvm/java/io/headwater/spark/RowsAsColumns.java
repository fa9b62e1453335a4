package io.headwater.spark;

import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.execution.RowToColumnConverter;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Copies rows into columns, those with offsets in {@code [from, until)}. */
final class RowsAsColumns implements PartitionReader<ColumnarBatch> {
  private static final int ROWS_MAX = 4096; // as many as Spark's Parquet reader
  private static final long BYTES_MAX = 16L << 20;

  private final PartitionReader<InternalRow> rows;
  private final long from;
  private final long until;
  private final int offsetAt; // -1: every row is wanted
  private final RowToColumnConverter converter;
  private final OnHeapColumnVector[] vectors;
  private final ColumnarBatch batch;

  RowsAsColumns(
      PartitionReader<InternalRow> rows, StructType columns, long from, long until) {
    this.rows = rows;
    this.from = from;
    this.until = until;
    boolean isCut = from > 0 || until < Long.MAX_VALUE;
    this.offsetAt = isCut ? columns.fieldIndex("offset") : -1;
    this.converter = new RowToColumnConverter(columns);
    this.vectors = OnHeapColumnVector.allocateColumns(ROWS_MAX, columns);
    this.batch = new ColumnarBatch(vectors);
  }

  @Override
  public boolean next() throws IOException {
    for (OnHeapColumnVector vector : vectors) {
      vector.reset();
    }
    int count = 0;
    long bytes = 0;
    while (count < ROWS_MAX && bytes < BYTES_MAX && rows.next()) {
      InternalRow row = rows.get();
      if (offsetAt >= 0 && (row.getLong(offsetAt) < from || row.getLong(offsetAt) >= until)) {
        continue;
      }
      converter.convert(row, vectors);
      count++;
      bytes += row instanceof UnsafeRow unsafe ? unsafe.getSizeInBytes() : 0;
    }
    batch.setNumRows(count);
    return count > 0;
  }

  @Override
  public ColumnarBatch get() {
    return batch;
  }

  @Override
  public void close() throws IOException {
    batch.close();
    rows.close();
  }
}
