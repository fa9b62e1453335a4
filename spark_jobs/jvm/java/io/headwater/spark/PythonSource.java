package io.headwater.spark;

import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.DataSource$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The Python data source {@code headwater} as Spark knows it. All that we use of Spark's internal
 * classes is here: the look-up of a source, which Spark's own reader does in the same way.
 */
final class PythonSource {
  static final String FORMAT = "headwater";

  private PythonSource() {}

  /** Plans a read with these options, in Python, and returns it as a table. */
  static SupportsRead table(CaseInsensitiveStringMap options) {
    TableProvider source = DataSource$.MODULE$.lookupDataSourceV2(FORMAT, SQLConf.get()).get();
    StructType schema = source.inferSchema(options);
    return (SupportsRead)
        source.getTable(schema, new Transform[0], options.asCaseSensitiveMap());
  }

  /** Returns an exception to be thrown where a method does not declare it, as Scala code does. */
  @SuppressWarnings("unchecked")
  static <E extends Exception> RuntimeException undeclared(Exception cause) throws E {
    throw (E) cause;
  }
}
