package io.headwater.spark;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.security.DigestOutputStream;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log on S3, safe for any number of drivers: a commit is one conditional PUT, so the store
 * itself decides who is first. A commit that lost is reported as existing, and Delta rebases it.
 *
 * <p>An answer may be lost after the store took the file; the SDK then sends it again and hears that
 * the file exists. So a refused write is compared with what is there: our own bytes mean success.
 *
 * <p>A file system that cannot create conditionally refuses the option: there is no fallback.
 */
public final class ConditionalLogStore extends HadoopFileSystemLogStore {
  private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
  private static final int COMPARE_BYTES = 64 * 1024;

  /** Called by Delta, by reflection. */
  public ConditionalLogStore(Configuration initial) {
    super(initial);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf)
      throws IOException {
    FileSystem files = path.getFileSystem(conf);
    FSDataOutputStreamBuilder<?, ?> builder =
        files.createFile(path).recursive().overwrite(overwrite);
    if (overwrite) {
      FSDataOutputStream stream = builder.build();
      send(stream, actions);
      stream.close();
      return;
    }
    builder.must(CONDITIONAL, true);
    FSDataOutputStream stream;
    try {
      stream = builder.build();
    } catch (org.apache.hadoop.fs.FileAlreadyExistsException there) {
      throw exists(path, there);
    }
    byte[] ours = send(stream, actions);
    try {
      stream.close();
    } catch (IOException cause) {
      byte[] found;
      try {
        found = digest(files, path);
      } catch (IOException unreadable) {
        cause.addSuppressed(unreadable); // nobody knows who is there: the writer has to be told
        throw cause;
      }
      if (!Arrays.equals(ours, found)) {
        throw exists(path, cause);
      }
    }
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration conf) {
    return false; // an object appears whole, when the stream is closed
  }

  /** Write all lines and return their digest. A failure aborts: a close would publish a part. */
  private static byte[] send(FSDataOutputStream stream, Iterator<String> actions)
      throws IOException {
    MessageDigest digest = sha256();
    try {
      DigestOutputStream lines = new DigestOutputStream(stream, digest);
      while (actions.hasNext()) {
        lines.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
      }
    } catch (IOException | RuntimeException | Error failure) {
      try {
        stream.abort();
      } catch (RuntimeException second) {
        failure.addSuppressed(second);
      }
      throw failure;
    }
    return digest.digest();
  }

  private static byte[] digest(FileSystem files, Path path) throws IOException {
    MessageDigest digest = sha256();
    byte[] buffer = new byte[COMPARE_BYTES];
    try (InputStream stream = files.open(path)) {
      for (int count = stream.read(buffer); count >= 0; count = stream.read(buffer)) {
        digest.update(buffer, 0, count);
      }
    }
    return digest.digest();
  }

  private static MessageDigest sha256() {
    try {
      return MessageDigest.getInstance("SHA-256");
    } catch (NoSuchAlgorithmException impossible) {
      throw new IllegalStateException(impossible); // every Java has it
    }
  }

  private static FileAlreadyExistsException exists(Path path, IOException cause) {
    FileAlreadyExistsException known = new FileAlreadyExistsException(path.toString());
    known.initCause(cause);
    return known;
  }
}
