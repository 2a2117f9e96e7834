package brokerstore.spark;

import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;

/** A part of a file in memory, which slides over it. It is a copy: a check and the decoding after it see the same bytes. */
final class FileWindow implements AutoCloseable {
  private static final int SIZE = 1 << 18; // stays in a processor's cache, with the buffer that is read into
  private static final VarHandle SHORT = MethodHandles.byteArrayViewVarHandle(short[].class, ByteOrder.BIG_ENDIAN);
  private static final VarHandle INT = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);
  private static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.BIG_ENDIAN);
  private static final long HIGH_BITS = 0x8080808080808080L;
  private static final long LOW_BITS = 0x0101010101010101L;
  private final FileChannel channel;
  private final long fileSize;
  private long start; // position in the file of the first byte of data
  private int filled;
  byte[] data = new byte[SIZE];

  FileWindow(Path file, long start, long fileSize) throws IOException {
    this.channel = FileChannel.open(file);
    this.start = start;
    this.fileSize = fileSize;
  }

  /** Returns the index in the data of a position in the file, with so many bytes after it, or -1 if the file is shorter. */
  int load(long position, int bytes) throws IOException {
    int index = (int) (position - start);
    if (filled - index >= bytes) {
      return index;
    }
    byte[] target = bytes > data.length ? new byte[Math.max(bytes, 2 * data.length)] : data;
    System.arraycopy(data, index, target, 0, filled - index);
    data = target;
    start = position;
    filled -= index;
    while (filled < bytes) {
      int most = (int) Math.min(data.length - filled, fileSize - start - filled);
      int found = most <= 0 ? -1 : channel.read(ByteBuffer.wrap(data, filled, most), start + filled);
      if (found < 0) {
        return -1;
      }
      filled += found;
    }
    return 0;
  }

  int getShort(int index) {
    return (short) SHORT.get(data, index);
  }

  int getInt(int index) {
    return (int) INT.get(data, index);
  }

  long getLong(int index) {
    return (long) LONG.get(data, index);
  }

  /** Returns whether bytes hold no zero. */
  boolean hasNoZero(int index, int size) {
    int end = index + size;
    for (; index + 8 <= end; index += 8) {
      long word = getLong(index);
      if (((word - LOW_BITS) & ~word & HIGH_BITS) != 0) {
        return false;
      }
    }
    for (; index < end; index++) {
      if (data[index] == 0) {
        return false;
      }
    }
    return true;
  }

  /** Returns whether all bytes are below 128. */
  boolean isAscii(int index, int size) {
    int end = index + size;
    long all = 0;
    for (; index + 8 <= end; index += 8) {
      all |= getLong(index);
    }
    for (; index < end; index++) {
      all |= data[index];
    }
    return (all & HIGH_BITS) == 0;
  }

  @Override
  public void close() throws IOException {
    channel.close();
  }
}
