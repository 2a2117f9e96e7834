package brokerstore.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** A planned read: the planner process turns options, columns and conditions into ranges. */
final class LogScan implements Scan, Batch {
  private final StructType schema;
  private final ObjectNode request;
  private JsonNode plan;

  private LogScan(StructType schema, ObjectNode request) {
    this.schema = schema;
    this.request = request;
  }

  @Override
  public StructType readSchema() {
    return schema;
  }

  @Override
  public String description() {
    return "brokerstore-jvm " + request.path("options").path("path").asText() + ", conditions: " + request.get("conditions");
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return new CustomMetric[] {new PythonRowCount()};
  }

  @Override
  public Batch toBatch() {
    return this;
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    return new LogStream(schema, request);
  }

  @Override
  public InputPartition[] planInputPartitions() {
    return ranges(plan());
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return factory(schema, plan());
  }

  /** Returns the ranges of a plan. */
  static InputPartition[] ranges(JsonNode plan) {
    List<InputPartition> ranges = new ArrayList<>();
    plan.get("ranges").forEach(range -> ranges.add(new Range(range.toString())));
    return ranges.toArray(new InputPartition[0]);
  }

  /** Returns what reads ranges, from the rest of a plan. */
  static PartitionReaderFactory factory(StructType schema, JsonNode plan) {
    ObjectNode common = plan.deepCopy();
    common.remove("ranges");
    return new Factory(schema, common.put("python", PythonProcess.python()).toString());
  }

  private JsonNode plan() {
    if (plan == null) {
      plan = PythonProcess.ask(request.put("verb", "plan").put("schema", schema.json()));
    }
    return plan;
  }

  /** A metric of the scan: not zero if some range was not plainly healthy. */
  public static final class PythonRowCount extends CustomSumMetric {
    static final String NAME = "rowsReadByPython";

    @Override
    public String name() {
      return NAME;
    }

    @Override
    public String description() {
      return "rows read by the Python source";
    }
  }

  record Range(String json) implements InputPartition {}

  private record Factory(StructType schema, String plan) implements PartitionReaderFactory {
    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return true;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      throw new UnsupportedOperationException("rows");
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      try {
        return new RangeReader(schema, Plan.of(plan), Plan.Range.of(((Range) partition).json()));
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
  }

  /** Takes the columns that a query uses, and comparisons of a column with constants. */
  static final class Builder implements ScanBuilder, SupportsPushDownRequiredColumns, SupportsPushDownV2Filters {
    private static final Map<String, String> OPERATORS =
        Map.of("=", "eq", ">", "gt", ">=", "ge", "<", "lt", "<=", "le", "IN", "in");
    private final ObjectNode request;
    private final ArrayNode conditions;
    private StructType schema;

    Builder(StructType schema, ObjectNode request) {
      this.schema = schema;
      this.request = request;
      this.conditions = request.putArray("conditions");
    }

    /** Keeps whole columns: Spark may ask for some fields of {@code problem}. */
    @Override
    public void pruneColumns(StructType required) {
      StructType table = schema;
      schema = new StructType(Arrays.stream(required.fieldNames()).map(table::apply).toArray(StructField[]::new));
    }

    /** Returns all predicates: Spark evaluates them again, so a condition only leaves out rows that it would drop. */
    @Override
    public Predicate[] pushPredicates(Predicate[] predicates) {
      conditions.removeAll();
      for (Predicate predicate : predicates) {
        ArrayNode found = condition(predicate);
        if (found != null) {
          conditions.add(found);
        }
      }
      return predicates;
    }

    @Override
    public Predicate[] pushedPredicates() {
      return new Predicate[0];
    }

    @Override
    public Scan build() {
      return new LogScan(schema, request);
    }

    private static ArrayNode condition(Predicate predicate) {
      Expression[] parts = predicate.children();
      String operator = OPERATORS.get(predicate.name());
      if (operator == null || !(parts[0] instanceof NamedReference column) || column.fieldNames().length != 1) {
        return null;
      }
      ArrayNode found = Plan.JSON.createArrayNode().add(column.fieldNames()[0]).add(operator);
      ArrayNode values = found.addArray();
      for (int index = 1; index < parts.length; index++) {
        if (!(parts[index] instanceof Literal<?> literal) || literal.value() == null) {
          return null;
        }
        if (literal.dataType() instanceof TimestampType) {
          values.addObject().put("us", (Long) literal.value());
        } else if (literal.value() instanceof Integer || literal.value() instanceof Long) {
          values.add(((Number) literal.value()).longValue());
        } else if (literal.value() instanceof org.apache.spark.unsafe.types.UTF8String) {
          values.add(literal.value().toString());
        } else {
          return null;
        }
      }
      return found;
    }
  }
}
