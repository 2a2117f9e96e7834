package brokerstore.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxBytes;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;

/** A stream: the stream reader of the Python source decides on offsets and batches, in a process that lives as long. */
final class LogStream implements MicroBatchStream, SupportsTriggerAvailableNow {
  private final PythonProcess process;
  private final PartitionReaderFactory factory;

  LogStream(StructType schema, ObjectNode request) {
    try {
      process = PythonProcess.begin(PythonProcess.python(), request.put("verb", "stream"));
      factory = LogScan.factory(schema, answer());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** An offset as the Python source writes it: a checkpoint serves both. */
  private static final class Text extends Offset {
    private final String json;

    Text(JsonNode answer) {
      this(answer.get("offset").asText());
    }

    Text(String json) {
      this.json = json;
    }

    @Override
    public String json() {
      return json;
    }
  }

  @Override
  public Offset initialOffset() {
    return new Text(call("initialOffset", request()));
  }

  @Override
  public Offset deserializeOffset(String json) {
    return new Text(json);
  }

  @Override
  public ReadLimit getDefaultReadLimit() {
    JsonNode found = call("getDefaultReadLimit", request()).get("maxBytes");
    return found.isNull() ? ReadLimit.allAvailable() : ReadLimit.maxBytes(found.asLong());
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    ObjectNode request = request().put("start", start.json());
    request.put("maxBytes", limit instanceof ReadMaxBytes most ? most.maxBytes() : null);
    return new Text(call("latestOffset", request));
  }

  @Override
  public Offset latestOffset() {
    throw new UnsupportedOperationException("without a limit");
  }

  @Override
  public Offset reportLatestOffset() {
    return new Text(call("reportLatestOffset", request()));
  }

  @Override
  public void prepareForTriggerAvailableNow() {
    call("prepareForTriggerAvailableNow", request());
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    return LogScan.ranges(call("partitions", request().put("start", start.json()).put("end", end.json())));
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return factory;
  }

  @Override
  public void commit(Offset end) {}

  @Override
  public void stop() {
    process.close();
  }

  private static ObjectNode request() {
    return Plan.JSON.createObjectNode();
  }

  private JsonNode call(String verb, ObjectNode request) {
    process.send(request.put("verb", verb));
    return answer();
  }

  /** Returns the answer of the process; after an error Spark ends the query. */
  private JsonNode answer() {
    try {
      return process.answer();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
