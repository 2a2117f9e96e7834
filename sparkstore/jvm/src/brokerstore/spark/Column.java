package brokerstore.spark;

import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;

/** One column of a batch. */
final class Column {
  private static final byte[] HEX_DIGITS = "0123456789ABCDEF".getBytes(StandardCharsets.US_ASCII);
  private static final byte[] TAGS = "TAGS".getBytes(StandardCharsets.US_ASCII);
  private static final byte[] KEYS = "KEYS".getBytes(StandardCharsets.US_ASCII);
  private final WritableColumnVector vector;
  private final Plan.Kind kind;
  private final int at;
  private final byte[] store;
  private final long msMax;
  private long lastHost;
  private byte[] lastHostText;

  Column(WritableColumnVector vector, Plan.Decoded column, String store, long msMax) {
    this.vector = vector;
    this.kind = column.kind();
    this.at = column.at();
    this.store = store.getBytes(StandardCharsets.UTF_8);
    this.msMax = msMax;
  }

  /** Sets the value of a row from the record that the decoder has checked. */
  void put(int row, RecordDecoder decoder, FileWindow window, Layout layout, Pairs pairs) {
    byte[] data = window.data;
    int index = decoder.record + at;
    switch (kind) {
      case INT -> vector.putInt(row, window.getInt(index));
      case LONG -> vector.putLong(row, window.getLong(index));
      case HEX -> vector.putByteArray(row, String.format("%08x", window.getInt(index)).getBytes(StandardCharsets.US_ASCII));
      case HOST -> vector.putByteArray(row, host(window, index));
      case ID -> vector.putByteArray(row, id(data, decoder.record, layout));
      case TOPIC -> vector.putByteArray(row, data, decoder.topicAt, decoder.topicSize);
      case TAGS -> putTags(row, data, pairs);
      case KEYS -> putKeys(row, data, pairs);
      case PROPERTIES -> putProperties(row, data, pairs);
      case BODY -> vector.putByteArray(row, data, decoder.record + layout.bodyAt(), decoder.bodySize);
      case TIME -> putTime(row, window.getLong(index));
      case STORE -> vector.putByteArray(row, store);
      case PROBLEM -> vector.putNull(row);
    }
  }

  private void putTime(int row, long ms) {
    if (ms > msMax || ms < -msMax) {
      vector.putNull(row);
    } else {
      vector.putLong(row, ms * 1000);
    }
  }

  private void putTags(int row, byte[] data, Pairs pairs) {
    int pair = pairs.find(TAGS);
    if (pair < 0) {
      vector.putNull(row);
    } else {
      vector.putByteArray(row, data, pairs.values[pair], pairs.valueSizes[pair]);
    }
  }

  private void putKeys(int row, byte[] data, Pairs pairs) {
    WritableColumnVector words = vector.arrayData();
    int first = words.getElementsAppended();
    int pair = pairs.find(KEYS);
    int stop = pair < 0 ? 0 : pairs.values[pair] + pairs.valueSizes[pair];
    for (int start = pair < 0 ? 0 : pairs.values[pair]; start < stop; ) {
      int end = start;
      while (end < stop && data[end] != ' ') {
        end++;
      }
      if (end > start) {
        words.appendByteArray(data, start, end - start);
      }
      start = end + 1;
    }
    vector.putArray(row, first, words.getElementsAppended() - first);
  }

  private void putProperties(int row, byte[] data, Pairs pairs) {
    WritableColumnVector names = vector.getChild(0);
    WritableColumnVector values = vector.getChild(1);
    int first = names.getElementsAppended();
    for (int pair = 0; pair < pairs.count; pair++) {
      names.appendByteArray(data, pairs.names[pair], pairs.nameSizes[pair]);
      values.appendByteArray(data, pairs.values[pair], pairs.valueSizes[pair]);
    }
    vector.putArray(row, first, pairs.count);
  }

  private byte[] host(FileWindow window, int index) {
    long host = window.getLong(index);
    if (host != lastHost || lastHostText == null) {
      int address = (int) (host >>> 32);
      String text = (address >>> 24) + "." + (address >>> 16 & 255) + "." + (address >>> 8 & 255) + "." + (address & 255);
      lastHostText = (text + ":" + (int) host).getBytes(StandardCharsets.US_ASCII);
      lastHost = host;
    }
    return lastHostText;
  }

  private static byte[] id(byte[] data, int record, Layout layout) {
    byte[] text = new byte[2 * (layout.hostSize() + Long.BYTES)];
    putHex(text, 0, data, record + layout.storeHostAt(), layout.hostSize());
    putHex(text, 2 * layout.hostSize(), data, record + layout.physicalOffsetAt(), Long.BYTES);
    return text;
  }

  private static void putHex(byte[] text, int at, byte[] data, int index, int size) {
    for (int number = 0; number < size; number++) {
      int value = data[index + number] & 255;
      text[at + 2 * number] = HEX_DIGITS[value >> 4];
      text[at + 2 * number + 1] = HEX_DIGITS[value & 15];
    }
  }
}
