package brokerstore.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.Deque;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.python.PythonUtils;

/** A process of {@code sparkstore.source.jvm_side}: it answers one request after the other, until its input ends. */
final class PythonProcess implements AutoCloseable {
  private static final String MODULE = "sparkstore.source.jvm_side";
  private static final int IDLE_MAX = 2; // each is a Python with its modules
  private static final Deque<PythonProcess> IDLE = new LinkedBlockingDeque<>(IDLE_MAX);
  private final String python;
  private final Process process;
  private boolean isIdle;

  /** Starts a process; what it logs goes to Spark's log. */
  private PythonProcess(String python) throws IOException {
    this.python = python;
    process = start(ProcessBuilder.Redirect.INHERIT, "-m", MODULE);
  }

  private Process start(ProcessBuilder.Redirect errors, String... words) throws IOException {
    ProcessBuilder builder = new ProcessBuilder(Stream.concat(Stream.of(python), Stream.of(words)).toList());
    String path = Stream.of(PythonUtils.sparkPythonPath(), System.getenv("PYTHONPATH"))
        .filter(part -> part != null && !part.isEmpty()).collect(Collectors.joining(File.pathSeparator));
    builder.environment().put("PYTHONPATH", path);
    return builder.redirectError(errors).start();
  }

  /** Sends a request to an idle process or a new one. */
  static PythonProcess begin(String python, JsonNode request) throws IOException {
    PythonProcess idle = IDLE.poll();
    while (idle != null && !(idle.process.isAlive() && idle.python.equals(python))) {
      idle.process.destroyForcibly();
      idle = IDLE.poll();
    }
    PythonProcess chosen = idle == null ? new PythonProcess(python) : idle;
    chosen.send(request);
    return chosen;
  }

  /** Sends a request, after the answer to the one before. */
  void send(JsonNode request) {
    isIdle = false;
    try {
      process.getOutputStream().write((request + "\n").getBytes(java.nio.charset.StandardCharsets.UTF_8));
      process.getOutputStream().flush();
    } catch (IOException gone) {
      // The process ended early: its missing answer says so.
    }
  }

  InputStream output() {
    return process.getInputStream();
  }

  /** Returns the line of JSON that ends an answer. Throws the error that it names, or one for a process that died. */
  JsonNode answer() throws IOException {
    ByteArrayOutputStream line = new ByteArrayOutputStream();
    for (int next = output().read(); next != '\n'; next = output().read()) {
      if (next < 0) {
        throw new IOException(ending());
      }
      line.write(next);
    }
    isIdle = true;
    JsonNode found = Plan.JSON.readTree(line.toByteArray());
    if (found.has("error")) {
      throw new IllegalArgumentException(found.get("error").asText());
    }
    return found;
  }

  /** Returns why there is no answer; a Python without the library is named as Spark names one without a source. */
  private String ending() throws IOException {
    try {
      return start(ProcessBuilder.Redirect.DISCARD, "-c", "import sparkstore").waitFor() == 0
          ? "the Python process of " + MODULE + " ended without an answer; Spark's log has its error"
          : "[DATA_SOURCE_NOT_FOUND] " + python + " does not have brokerstore installed";
    } catch (InterruptedException stopped) {
      throw new IOException(stopped);
    }
  }

  /** Asks on the driver, with the Python that Spark starts for its workers. */
  static JsonNode ask(JsonNode request) {
    try (PythonProcess process = begin(python(), request)) {
      return process.answer();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  static String python() {
    String other = System.getenv().getOrDefault("PYSPARK_PYTHON", "python3");
    return SparkEnv.get().conf().get("spark.pyspark.python", other);
  }

  /** Keeps the process if it has answered: starting one takes a second. */
  @Override
  public void close() {
    if (!isIdle || !IDLE.offer(this)) {
      process.destroyForcibly();
    }
    isIdle = false;
  }
}
