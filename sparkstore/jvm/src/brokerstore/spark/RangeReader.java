package brokerstore.spark;

import java.io.IOException;
import java.nio.file.NoSuchFileException;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The rows of a range: decoded here up to the first record that is not plainly healthy, and read by Python from there on. */
final class RangeReader implements PartitionReader<ColumnarBatch> {
  private final Plan plan;
  private final Plan.Range range;
  private final int columns;
  private final RecordDecoder decoder; // null if Python reads the whole range
  private PythonRows python;
  private long pythonRows;
  private ColumnarBatch current;

  RangeReader(StructType schema, Plan plan, Plan.Range range) throws IOException {
    this.plan = plan;
    this.range = range;
    columns = schema.length();
    decoder = range.python() ? null : decoder(schema);
  }

  private RecordDecoder decoder(StructType schema) throws IOException {
    try {
      return new RecordDecoder(schema, plan, range);
    } catch (NoSuchFileException deleted) {
      return null; // Python reports it
    }
  }

  @Override
  public boolean next() throws IOException {
    if (python == null) {
      current = decoder == null ? null : decoder.next();
      if (current != null) {
        return true;
      }
      if (decoder != null && decoder.isDone()) {
        return false;
      }
      python = new PythonRows(plan, range, decoder == null ? range.begin() : decoder.at(), columns);
    }
    current = python.next();
    pythonRows += current == null ? 0 : current.numRows();
    return current != null;
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return new CustomTaskMetric[] {new Count(LogScan.PythonRowCount.NAME, pythonRows)};
  }

  private record Count(String name, long value) implements CustomTaskMetric {}

  @Override
  public ColumnarBatch get() {
    return current;
  }

  @Override
  public void close() throws IOException {
    if (decoder != null) {
      decoder.close();
    }
    if (python != null) {
      python.close();
    }
  }
}
