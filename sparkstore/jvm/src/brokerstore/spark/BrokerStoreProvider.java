package brokerstore.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The format "brokerstore" of a session with the jar: reads are Java's or those of the Python source, as its planner chooses.
 *
 * <p>Spark looks for a format on the class path first, so this one hides the Python source of the same name, and passes on to it
 * what it does not do itself: sinks, and reads that Python selects.
 */
public class BrokerStoreProvider implements TableProvider, DataSourceRegister {
  private static final String PYTHON_SOURCE = "brokerstore";

  /** Reads by Java, whatever the planner would choose. */
  public static final class Jvm extends BrokerStoreProvider {
    @Override
    public String shortName() {
      return "brokerstore-jvm";
    }

    @Override
    boolean isForJvm(StructType schema, CaseInsensitiveStringMap options) {
      return true;
    }
  }

  /** Reads by the Python source. */
  public static final class Python extends BrokerStoreProvider {
    @Override
    public String shortName() {
      return "brokerstore-python";
    }

    @Override
    boolean isForJvm(StructType schema, CaseInsensitiveStringMap options) {
      return false;
    }
  }

  @Override
  public String shortName() {
    return PYTHON_SOURCE;
  }

  boolean isForJvm(StructType schema, CaseInsensitiveStringMap options) {
    return PythonProcess.ask(request(options).put("verb", "choose").put("table", schema.json())).get("jvm").asBoolean();
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    String schema = PythonProcess.ask(request(options).put("verb", "schema")).get("schema").asText();
    return (StructType) DataType.fromJson(schema);
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    PythonDataSourceV2 python = new PythonDataSourceV2();
    python.setShortName(PYTHON_SOURCE);
    return new StoreTable(this, schema, (PythonTable) python.getTable(schema, partitioning, properties));
  }

  private static ObjectNode request(CaseInsensitiveStringMap options) {
    ObjectNode request = Plan.JSON.createObjectNode();
    ObjectNode given = request.putObject("options");
    options.asCaseSensitiveMap().forEach(given::put);
    return request;
  }

  private record StoreTable(BrokerStoreProvider provider, StructType schema, PythonTable python)
      implements Table, SupportsRead, SupportsWrite {
    @Override
    public String name() {
      return provider.shortName();
    }

    @Override
    public Set<TableCapability> capabilities() {
      return python.capabilities();
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return provider.isForJvm(schema, options)
          ? new LogScan.Builder(schema, request(options).put("table", schema.json()))
          : python.newScanBuilder(options);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return python.newWriteBuilder(info);
    }
  }
}
