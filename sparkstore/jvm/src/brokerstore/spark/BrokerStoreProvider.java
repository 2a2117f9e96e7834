package brokerstore.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The format "brokerstore-jvm": reads and streams of RocketMQ logs with the options and rows of the Python source "brokerstore". */
public final class BrokerStoreProvider implements TableProvider, DataSourceRegister {
  @Override
  public String shortName() {
    return "brokerstore-jvm";
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
    return new LogTable(schema);
  }

  static ObjectNode request(CaseInsensitiveStringMap options) {
    ObjectNode request = Plan.JSON.createObjectNode();
    ObjectNode given = request.putObject("options");
    options.asCaseSensitiveMap().forEach(given::put);
    return request;
  }

  private record LogTable(StructType schema) implements Table, SupportsRead {
    @Override
    public String name() {
      return "brokerstore-jvm";
    }

    @Override
    public Set<TableCapability> capabilities() {
      return EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return new LogScan.Builder(schema, request(options).put("table", schema.json()));
    }
  }
}
