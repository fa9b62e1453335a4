package io.headwater.spark;

import java.io.IOException;
import java.io.Serializable;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;

/**
 * Renews the lease of a read from the tasks that read files: in Python, by reading a partition that
 * has no rows. A lease lasts ten minutes, so a process asks for one after some minutes only.
 */
final class LeaseRenewal implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final long EVERY_MS_DEFAULT = 150_000;
  private static final String EVERY_MS = "io.headwater.spark.leaseRenewalMs"; // for tests
  private static final int REMEMBERED_MAX = 1000;
  private static final Map<String, Long> RENEWED_MS = new ConcurrentHashMap<>();

  private final String lease;
  private final long heldMs;
  private final InputPartition renewal;
  private final PartitionReaderFactory python;

  /** {@code heldMs} is a time, of the driver's clock, at which the lease was held. */
  LeaseRenewal(
      String lease, long heldMs, InputPartition renewal, PartitionReaderFactory python) {
    this.lease = lease;
    this.heldMs = heldMs;
    this.renewal = renewal;
    this.python = python;
  }

  /** Renews the lease if this process has not done it for a while. Blocks. */
  void renewIfDue() throws IOException {
    long nowMs = System.currentTimeMillis();
    long knownMs = Math.max(heldMs, RENEWED_MS.getOrDefault(lease, 0L));
    if (lease.isEmpty() || nowMs - knownMs < Long.getLong(EVERY_MS, EVERY_MS_DEFAULT)) {
      return;
    }
    if (RENEWED_MS.size() >= REMEMBERED_MAX) {
      RENEWED_MS.clear(); // costs a renewal for each lease that is still in use
    }
    RENEWED_MS.put(lease, nowMs); // first, so that other tasks do not ask, too
    try (PartitionReader<InternalRow> reader = python.createReader(renewal)) {
      while (reader.next()) {
        throw new IllegalStateException("the renewal of a lease has no rows");
      }
    }
  }
}
