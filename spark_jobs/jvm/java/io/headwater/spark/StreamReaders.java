package io.headwater.spark;

import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Reads both tiers as columns: Spark wants one form for all partitions of a scan. */
final class StreamReaders implements PartitionReaderFactory {
  private static final long serialVersionUID = 1L;

  private final StructType columns;
  private final PartitionReaderFactory parquet;
  private final boolean isVectorized; // false by a setting of the session
  private final PartitionReaderFactory python;
  private final LeaseRenewal lease;

  StreamReaders(
      StructType columns,
      PartitionReaderFactory parquet,
      PartitionReaderFactory python,
      LeaseRenewal lease) {
    this.columns = columns;
    this.parquet = parquet;
    this.isVectorized = parquet.supportColumnarReads(null);
    this.python = python;
    this.lease = lease;
  }

  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    return true;
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    throw new UnsupportedOperationException("this scan returns columns");
  }

  @Override
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    if (partition instanceof ColdTask task) {
      return new ColdReader(task.pieces());
    }
    return python.createColumnarReader(partition);
  }

  /** Reads one piece after the other, and counts the rows where their number is known. */
  private final class ColdReader implements PartitionReader<ColumnarBatch> {
    private final ColdTask.Piece[] pieces;
    private int at = -1;
    private PartitionReader<ColumnarBatch> open;
    private long rows;

    ColdReader(ColdTask.Piece[] pieces) {
      this.pieces = pieces;
    }

    @Override
    public boolean next() throws IOException {
      while (true) {
        if (open != null && open.next()) {
          rows += open.get().numRows();
          return true;
        }
        endPiece();
        at++;
        if (at == pieces.length) {
          return false;
        }
        lease.renewIfDue();
        open = opened(pieces[at]);
        rows = 0;
      }
    }

    @Override
    public ColumnarBatch get() {
      return open.get();
    }

    @Override
    public void close() throws IOException {
      if (open != null) {
        open.close();
        open = null;
      }
    }

    private void endPiece() throws IOException {
      if (open == null) {
        return;
      }
      close();
      ColdTask.Piece read = pieces[at];
      boolean isCounted = read.rows() != ColdTask.Piece.NOT_COUNTED && !read.isCut();
      if (isCounted && read.rows() != rows) {
        throw ParquetFiles.wrongCount(read, rows);
      }
    }

    private PartitionReader<ColumnarBatch> opened(ColdTask.Piece piece) {
      InputPartition named = ParquetFiles.named(piece, columns);
      if (isVectorized && !piece.isCut()) {
        return parquet.createColumnarReader(named);
      }
      return new RowsAsColumns(parquet.createReader(named), columns, piece.from(), piece.until());
    }
  }
}
