package brokerstore.spark;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** The properties of one record: where names and values lie in the window. */
final class Pairs {
  private static final int COUNT_MAX = 64;
  private final FileWindow window;
  private final Layout layout;
  private final byte[] crcName;
  final int[] names = new int[COUNT_MAX];
  final int[] nameSizes = new int[COUNT_MAX];
  final int[] values = new int[COUNT_MAX];
  final int[] valueSizes = new int[COUNT_MAX];
  int count;

  Pairs(FileWindow window, Layout layout) {
    this.window = window;
    this.layout = layout;
    this.crcName = layout.crcName().getBytes(StandardCharsets.US_ASCII);
  }

  /** Splits properties; returns false for any that are not usual. */
  boolean split(int at, int size) {
    byte[] data = window.data;
    int stop = at + size;
    count = 0;
    while (at < stop) {
      int end = find(data, layout.pairEnd(), at, stop);
      int middle = find(data, layout.nameEnd(), at, end);
      if (middle == at || middle >= end - 1 || count == COUNT_MAX) {
        return false;
      }
      names[count] = at;
      nameSizes[count] = middle - at;
      values[count] = middle + 1;
      valueSizes[count] = end - middle - 1;
      if (indexOf(data, at, middle - at, count) >= 0 || isName(count, crcName)) {
        return false;
      }
      count++;
      at = end + 1;
    }
    return true;
  }

  /** Returns the index of the pair of a name, or -1. */
  int find(byte[] name) {
    int index = count - 1;
    while (index >= 0 && !isName(index, name)) {
      index--;
    }
    return index;
  }

  private boolean isName(int index, byte[] name) {
    int at = names[index];
    return nameSizes[index] == name.length && Arrays.equals(window.data, at, at + name.length, name, 0, name.length);
  }

  private int indexOf(byte[] data, int at, int size, int limit) {
    for (int index = 0; index < limit; index++) {
      if (nameSizes[index] == size && Arrays.equals(data, at, at + size, data, names[index], names[index] + size)) {
        return index;
      }
    }
    return -1;
  }

  private static int find(byte[] data, int wanted, int at, int stop) {
    while (at < stop && data[at] != wanted) {
      at++;
    }
    return at;
  }

  /** Returns whether the properties end in a well-formed checksum of the whole record. */
  boolean hasTrailer(int at, int size) {
    byte[] data = window.data;
    int end = at + size;
    int start = end - layout.crcSize();
    int digits = end - 1 - layout.crcDigits();
    if (size < layout.crcSize() || data[end - 1] != layout.pairEnd() || data[digits - 1] != layout.nameEnd()) {
      return false;
    }
    if (size > layout.crcSize() && data[start - 1] != layout.pairEnd()) {
      return false;
    }
    for (int index = digits; index < end - 1; index++) {
      if (data[index] < '0' || data[index] > '9') {
        return false;
      }
    }
    return Arrays.equals(data, start, start + crcName.length, crcName, 0, crcName.length);
  }

  /** Returns the number in a checksum that ends at an index: its least significant digit comes first. */
  long trailerValue(int end) {
    long value = 0;
    for (int index = end - 2; index > end - 2 - layout.crcDigits(); index--) {
      value = value * 10 + (window.data[index] - '0');
    }
    return value;
  }
}
