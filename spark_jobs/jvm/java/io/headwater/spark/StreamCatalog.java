package io.headwater.spark;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Streams as the tables of a catalog: {@code SELECT … FROM headwater.flights}.
 *
 * <p>Spark loads a table for each statement, and a load takes a new cut of the stream. So each
 * statement reads what is committed when it begins. {@code VERSION AS OF} takes a saved cut or
 * offsets, {@code TIMESTAMP AS OF} a time, with the meaning of {@code as_of} of headwater.read.
 *
 * <p>This class decides nothing about offsets, leases or tiers: it names the stream and the moment
 * to the data source {@code headwater}, whose Python code plans the read. The settings
 * {@code spark.sql.catalog.headwater.NAME} become options of that source, such as {@code server}.
 */
public final class StreamCatalog implements TableCatalog {
  private static final String NOW = "now";
  private static final String UNKNOWN_STREAM = "\"error\": \"UnknownStreamError\"";
  private static final String MADE_ELSEWHERE =
      "streams are made, changed and deleted by `headwater stream`, not by SQL";

  private String name;
  private String reader; // of the table's files: jvm or python
  private Map<String, String> options;

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    Map<String, String> given = new HashMap<>(options);
    this.reader = options.getOrDefault("coldFiles", "jvm");
    given.remove("coldfiles");
    this.options = Map.copyOf(given);
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length > 0) {
      throw new NoSuchNamespaceException(namespace);
    }
    List<Row> streams =
        SparkSession.active()
            .read()
            .format(PythonSource.FORMAT)
            .options(options)
            .option("emit", "streams")
            .load()
            .select("stream")
            .collectAsList();
    return streams.stream()
        .map(row -> Identifier.of(namespace, row.getString(0)))
        .toArray(Identifier[]::new);
  }

  @Override
  public Table loadTable(Identifier table) throws NoSuchTableException {
    return load(table, NOW);
  }

  @Override
  public Table loadTable(Identifier table, String version) throws NoSuchTableException {
    return load(table, version);
  }

  @Override
  public Table loadTable(Identifier table, long timestampMicros) throws NoSuchTableException {
    return load(table, Instant.EPOCH.plus(timestampMicros, ChronoUnit.MICROS).toString());
  }

  private Table load(Identifier table, String asOf) throws NoSuchTableException {
    if (table.namespace().length > 0) {
      throw new NoSuchTableException(table);
    }
    Map<String, String> chosen = new HashMap<>(options);
    chosen.put("coldfiles", reader);
    chosen.put("stream", table.name());
    chosen.put("asOf", asOf);
    try {
      return new StreamTable(name + "." + table.name(), new CaseInsensitiveStringMap(chosen));
    } catch (RuntimeException failed) {
      throw failed;
    } catch (Exception failed) { // Scala code throws Spark's checked exceptions undeclared
      if (String.valueOf(failed.getMessage()).contains(UNKNOWN_STREAM)) {
        throw new NoSuchTableException(table);
      }
      throw PythonSource.undeclared(failed);
    }
  }

  @Override
  public Table alterTable(Identifier table, TableChange... changes) {
    throw new UnsupportedOperationException(MADE_ELSEWHERE);
  }

  @Override
  public boolean dropTable(Identifier table) {
    throw new UnsupportedOperationException(MADE_ELSEWHERE);
  }

  @Override
  public void renameTable(Identifier from, Identifier to) {
    throw new UnsupportedOperationException(MADE_ELSEWHERE);
  }
}
