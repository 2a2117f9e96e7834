package brokerstore.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.util.Iterator;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Decodes the ranges of plans as the JVM source's tasks do, without Spark: a plan a line; see {@code fuzz/jvm_ranges.py}. */
public final class JvmRanges {
  private JvmRanges() {}

  /** Writes the rows of each plan to the file that it names, and prints where each range stopped: -1 if not before its end. */
  public static void main(String[] arguments) throws IOException {
    BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
    for (String line = requests.readLine(); line != null; line = requests.readLine()) {
      System.out.println(decode(Plan.JSON.readTree(line)));
    }
  }

  private static ArrayNode decode(JsonNode request) throws IOException {
    StructType schema = (StructType) DataType.fromJson(request.get("schema").asText());
    Plan plan = Plan.of(request.get("plan").toString());
    ArrayNode stops = Plan.JSON.createArrayNode();
    ArrowWriter rows = ArrowWriter.create(schema, "UTC", false, false);
    try (OutputStream file = new FileOutputStream(request.get("rows").asText());
        ArrowStreamWriter stream = new ArrowStreamWriter(rows.root(), null, file)) {
      for (JsonNode range : request.get("ranges")) {
        stops.add(stop(schema, plan, Plan.Range.of(range.toString()), rows));
      }
      rows.finish();
      stream.writeBatch();
    } finally {
      rows.root().close();
    }
    return stops;
  }

  private static long stop(StructType schema, Plan plan, Plan.Range range, ArrowWriter rows) throws IOException {
    if (range.python()) {
      return range.begin();
    }
    try (RecordDecoder decoder = new RecordDecoder(schema, plan, range)) {
      for (ColumnarBatch batch = decoder.next(); batch != null; batch = decoder.next()) {
        for (Iterator<InternalRow> found = batch.rowIterator(); found.hasNext(); ) {
          rows.write(found.next());
        }
      }
      return decoder.isDone() ? -1 : decoder.at();
    }
  }
}
