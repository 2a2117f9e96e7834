import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/** One JSON command a line on stdin, one JSON answer a line on stdout; output of libraries goes to stderr. */
public class Lines {
    public interface Runner {
        Object run(JSONObject command) throws Exception;
    }

    private final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    Lines() { System.setOut(System.err); }

    void serve(Runner runner) throws IOException {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = commands.readLine()) != null; ) say(answer(runner, line));
    }

    private static Object answer(Runner runner, String line) {
        try {
            return runner.run(JSON.parseObject(line));
        } catch (Throwable error) {
            error.printStackTrace();
            return new JSONObject(Map.of("error", error.toString()));
        }
    }

    void say(Object answer) { out.println(JSON.toJSONString(answer, JSONWriter.Feature.WriteNulls)); }

    void line(String text) { out.println(text); }
}
