package brokerstore.spark;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** Decides a condition on a record. */
final class RowCondition {
  final boolean isTopic;
  private final Plan.Condition condition;
  private final long[] numbers;
  private final byte[][] texts;

  RowCondition(Plan.Condition condition) {
    this.condition = condition;
    isTopic = condition.kind() == Plan.Kind.TOPIC;
    numbers = isTopic ? null : condition.values().stream().mapToLong(value -> value.asLong()).toArray();
    texts = !isTopic ? null : condition.values().stream()
        .map(value -> value.asText().getBytes(StandardCharsets.UTF_8)).toArray(byte[][]::new);
  }

  boolean accepts(RecordDecoder decoder, FileWindow window) {
    if (isTopic) {
      return isOneOf(window.data, decoder.topicAt, decoder.topicSize);
    }
    int at = decoder.record + condition.at();
    long value = condition.kind() == Plan.Kind.LONG ? window.getLong(at) : window.getInt(at);
    return switch (condition.operator()) {
      case "gt" -> value > numbers[0];
      case "ge" -> value >= numbers[0];
      case "lt" -> value < numbers[0];
      case "le" -> value <= numbers[0];
      case "in" -> Arrays.stream(numbers).anyMatch(number -> number == value);
      default -> throw new IllegalStateException(condition.operator());
    };
  }

  private boolean isOneOf(byte[] data, int at, int size) {
    for (byte[] text : texts) {
      if (Arrays.equals(data, at, at + size, text, 0, text.length)) {
        return true;
      }
    }
    return false;
  }
}
