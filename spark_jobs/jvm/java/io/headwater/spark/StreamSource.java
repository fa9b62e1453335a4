package io.headwater.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The data source {@code headwater} as {@code headwater.read} uses it for the log: Python plans and
 * reads, but of each action only the columns that it needs. Spark tells them to a source in Java, and
 * never to one in Python.
 */
public final class StreamSource implements TableProvider {
  private StreamTable table; // Spark asks for the schema and then for the table

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return loaded(options).type();
  }

  @Override
  public Table getTable(
      StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return loaded(new CaseInsensitiveStringMap(properties));
  }

  private synchronized StreamTable loaded(CaseInsensitiveStringMap options) {
    if (table == null) {
      table = new StreamTable(PythonSource.FORMAT + "." + options.get("stream"), options);
    }
    return table;
  }
}
