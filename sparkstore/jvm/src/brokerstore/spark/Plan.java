package brokerstore.spark;

import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.List;

/** How to read all ranges of a scan, as the planner sends it; {@code request} is the Python source's own. */
record Plan(
    String python, String request, List<Decoded> columns, boolean checksums, int flags, int batchRows, long batchBytes,
    long msMax, Layout layout) {
  static final ObjectMapper JSON = new ObjectMapper()
      .enable(DeserializationFeature.FAIL_ON_MISSING_CREATOR_PROPERTIES, DeserializationFeature.FAIL_ON_NULL_FOR_PRIMITIVES);

  static Plan of(String json) throws IOException {
    return JSON.readValue(json, Plan.class);
  }

  /** A column: its kind, and where its value lies in a record. */
  record Decoded(Kind kind, int at) {}

  /** The kinds of columns, by the names that the planner sends. */
  enum Kind { INT, LONG, HEX, HOST, ID, TOPIC, TAGS, KEYS, PROPERTIES, BODY, TIME, STORE, PROBLEM }

  /** The records of a file that start at physical offsets begin..end; {@code split} is the Python source's own. */
  record Range(
      String file, long base, long size, long begin, long end, String store, boolean python, List<Condition> conditions,
      String split) {
    static Range of(String json) throws IOException {
      return JSON.readValue(json, Range.class);
    }
  }

  /** A comparison of a number of a record, or of its topic, with constants. */
  record Condition(Kind kind, int at, String operator, List<JsonNode> values) {}
}
