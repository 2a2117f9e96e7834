package brokerstore.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.Set;
import java.util.zip.CRC32;
import org.apache.spark.sql.execution.vectorized.OffHeapColumnVector;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Decodes the records of a range to columns, and stops at the first that is not plainly healthy.
 *
 * <p>Plainly healthy is less than what the Python source accepts: version 1, IPv4 hosts, no batch, text in UTF-8 without zeros,
 * each property once, with a name and a value, and every checksum right. A record of another kind is no error here.
 */
final class RecordDecoder implements AutoCloseable {
  private static final int ROWS_MAX = 4096;
  private final Layout layout;
  private final WritableColumnVector[] vectors;
  private final Column[] columns;
  private final RowCondition[] conditions;
  private final boolean hasTopics; // topics are decoded or compared
  private final boolean hasPairs; // properties are decoded
  private final boolean hasChecksums;
  private final int flags;
  private final int rowsMax;
  private final long bytesMax;
  private final FileWindow window;
  private final long base;
  private final long fileSize;
  private final long end;
  private final CRC32 crc = new CRC32();
  private final ColumnarBatch batch;
  private final Pairs pairs;
  private long at; // physical offset
  private boolean isStopped;

  // The record that was checked last: indexes in the window.
  int record;
  int recordSize;
  int bodySize;
  int topicAt;
  int topicSize;

  RecordDecoder(StructType schema, Plan plan, Plan.Range range) throws IOException {
    layout = plan.layout();
    base = range.base();
    fileSize = range.size();
    at = range.begin();
    end = range.end();
    hasChecksums = plan.checksums();
    flags = plan.flags();
    rowsMax = Math.min(ROWS_MAX, plan.batchRows());
    bytesMax = plan.batchBytes();
    window = new FileWindow(Path.of(range.file()), at - base, fileSize);
    pairs = new Pairs(window, layout);
    conditions = range.conditions().stream().map(RowCondition::new).toArray(RowCondition[]::new);
    vectors = OffHeapColumnVector.allocateColumns(rowsMax, schema);
    columns = new Column[vectors.length];
    Set<Plan.Kind> kinds = EnumSet.noneOf(Plan.Kind.class);
    for (int index = 0; index < columns.length; index++) {
      Plan.Decoded column = plan.columns().get(index);
      columns[index] = new Column(vectors[index], column, range.store(), plan.msMax());
      kinds.add(column.kind());
    }
    hasPairs = kinds.contains(Plan.Kind.TAGS) || kinds.contains(Plan.Kind.KEYS) || kinds.contains(Plan.Kind.PROPERTIES);
    hasTopics = kinds.contains(Plan.Kind.TOPIC) || Arrays.stream(conditions).anyMatch(one -> one.isTopic);
    batch = new ColumnarBatch((ColumnVector[]) vectors);
  }

  /** Returns the physical offset of the first record that was not decoded. */
  long at() {
    return at;
  }

  /** Returns whether the range was decoded to its end. */
  boolean isDone() {
    return !isStopped;
  }

  /** Returns the next rows, which are valid until the next call, or null. */
  ColumnarBatch next() throws IOException {
    for (WritableColumnVector vector : vectors) {
      vector.reset();
    }
    int rows = 0;
    long bytes = 0;
    while (at < end && !isStopped && rows < rowsMax && bytes < bytesMax) {
      long left = fileSize - (at - base);
      if (isEnd(left)) {
        at = end;
      } else if (!isHealthy(left)) {
        isStopped = true;
      } else {
        if (isSelected()) {
          for (Column column : columns) {
            column.put(rows, this, window, layout, pairs);
          }
          rows++;
          bytes += recordSize;
        }
        at += recordSize;
      }
    }
    batch.setNumRows(rows);
    return rows == 0 ? null : batch;
  }

  /** Returns whether a blank record covers the rest of the file. */
  private boolean isEnd(long left) throws IOException {
    int index = left < layout.blankSize() ? -1 : window.load(at - base, layout.blankSize());
    return index >= 0
        && window.getInt(index + layout.magicAt()) == layout.magicBlank()
        && window.getInt(index + layout.sizeAt()) == left;
  }

  private boolean isHealthy(long left) throws IOException {
    int index = left < layout.recordSizeMin() ? -1 : window.load(at - base, layout.recordSizeMin());
    if (index < 0 || window.getInt(index + layout.magicAt()) != layout.magicV1()) {
      return false;
    }
    recordSize = window.getInt(index + layout.sizeAt());
    int space = recordSize - layout.recordSizeMin();
    if (space < 0 || recordSize > left) {
      return false;
    }
    index = window.load(at - base, recordSize);
    if (index < 0) {
      return false;
    }
    record = index;
    bodySize = window.getInt(index + layout.bodySizeAt());
    if (bodySize < 0 || bodySize > space || (window.getInt(index + layout.sysFlagAt()) & ~flags) != 0) {
      return false;
    }
    topicAt = index + layout.bodyAt() + bodySize + layout.topicSizeSize();
    topicSize = window.data[topicAt - layout.topicSizeSize()];
    if (topicSize <= 0 || topicSize > space - bodySize) {
      return false;
    }
    int propertiesAt = topicAt + topicSize + layout.propertiesSizeSize();
    int propertiesSize = window.getShort(propertiesAt - layout.propertiesSizeSize());
    return propertiesSize == space - bodySize - topicSize
        && window.getLong(index + layout.physicalOffsetAt()) == at
        && window.getInt(index + layout.queueIdAt()) >= 0
        && window.getLong(index + layout.queueOffsetAt()) >= 0
        && areContentsHealthy(propertiesAt, propertiesSize);
  }

  private boolean areContentsHealthy(int propertiesAt, int propertiesSize) {
    // What is neither decoded nor checked stays untouched: it is memory that the processor would have to fetch.
    if ((hasTopics || hasChecksums) && !isText(topicAt, topicSize)) {
      return false;
    }
    if (!hasPairs && !hasChecksums) {
      return true;
    }
    if (!isText(propertiesAt, propertiesSize)) {
      return false;
    }
    boolean hasTrailer = pairs.hasTrailer(propertiesAt, propertiesSize);
    if (hasChecksums && !(hasTrailer ? isRecordWhole() : isBodyWhole())) {
      return false;
    }
    return !hasPairs || pairs.split(propertiesAt, propertiesSize - (hasTrailer ? layout.crcSize() : 0));
  }

  private boolean isRecordWhole() {
    return checksum(record, recordSize - layout.crcSize()) == pairs.trailerValue(record + recordSize);
  }

  private boolean isBodyWhole() {
    return bodySize == 0 || checksum(record + layout.bodyAt(), bodySize) == window.getInt(record + layout.bodyCrcAt());
  }

  private long checksum(int index, int size) {
    crc.reset();
    crc.update(window.data, index, size);
    return crc.getValue() & layout.crcMask();
  }

  /** Returns whether bytes are text without zeros, which can be a sector that never reached the disk. */
  private boolean isText(int index, int size) {
    if (!window.hasNoZero(index, size)) {
      return false;
    }
    if (window.isAscii(index, size)) {
      return true;
    }
    try {
      StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(window.data, index, size));
      return true;
    } catch (CharacterCodingException invalid) {
      return false;
    }
  }

  private boolean isSelected() {
    for (RowCondition condition : conditions) {
      if (!condition.accepts(this, window)) {
        return false;
      }
    }
    return true;
  }

  @Override
  public void close() throws IOException {
    batch.close();
    window.close();
  }
}
