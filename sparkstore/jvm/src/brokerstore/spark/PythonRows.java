package brokerstore.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ValueVector;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The rows of a range from a physical offset on, read by the Python source. */
final class PythonRows implements AutoCloseable {
  private final PythonProcess process;
  private final BufferAllocator allocator;
  private final ArrowStreamReader stream;
  private final int columns;

  PythonRows(Plan plan, Plan.Range range, long from, int columns) throws IOException {
    ObjectNode request = Plan.JSON.createObjectNode().put("verb", "read").put("from", from).put("begin", range.begin());
    request.put("split", range.split()).put("request", plan.request());
    this.columns = columns;
    allocator = ArrowUtils.rootAllocator().newChildAllocator("brokerstore", 0, Long.MAX_VALUE);
    process = PythonProcess.begin(plan.python(), request);
    stream = new ArrowStreamReader(process.output(), allocator);
  }

  /** Returns the next rows, which are valid until the next call, or null at the end. Throws the error of the Python source. */
  ColumnarBatch next() throws IOException {
    boolean more;
    try {
      more = stream.loadNextBatch();
    } catch (IOException | RuntimeException cut) {
      throw new IOException("the Python process of a range ended early; the executor's log has its error", cut);
    }
    if (!more) {
      process.answer();
      return null;
    }
    ColumnVector[] vectors = new ColumnVector[columns];
    for (int index = 0; index < columns; index++) {
      vectors[index] = new Vector(stream.getVectorSchemaRoot().getVector(index));
    }
    return new ColumnarBatch(vectors, stream.getVectorSchemaRoot().getRowCount());
  }

  /** A vector that stays when Spark is done with a batch: the stream fills it again. */
  private static final class Vector extends ArrowColumnVector {
    Vector(ValueVector vector) {
      super(vector);
    }

    @Override
    public void closeIfFreeable() {}
  }

  @Override
  public void close() throws IOException {
    process.close(); // first: otherwise the stream's end is awaited
    stream.close(false);
    allocator.close();
  }
}
