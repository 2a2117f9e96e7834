import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** RocketMQ's store without a broker: one JSON command a line on stdin, one JSON answer a line on stdout; it measures its own times. */
public class PeerStore {
    static final String[] TAGS = {"TagA", "TagB", "TagC", "TagD"};
    static final InetSocketAddress HOST = new InetSocketAddress(loopback(), 10911);
    static final int PAGE = 32;
    static final Map<Integer, DefaultMessageStore> STORES = new HashMap<>();
    static long sink;  // uses what was read, so that the compiler cannot remove the reads

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = commands.readLine()) != null; ) {
            Object answer;
            try {
                answer = run(JSON.parseObject(line));
            } catch (Throwable error) {
                error.printStackTrace();
                answer = new JSONObject(Map.of("error", error.toString()));
            }
            answers.println(JSON.toJSONString(answer));
        }
        System.exit(0);
    }

    static Object run(JSONObject c) throws Exception {
        DefaultMessageStore store = STORES.get(c.getIntValue("id"));
        switch (c.getString("do")) {
            case "open": return open(c);
            case "put": return put(store, c);
            case "batch": return batch(store, c);
            case "scan": return scan(store, c);
            case "probe": return probe(store, c);
            case "close": STORES.remove(c.getIntValue("id")).shutdown(); return new JSONObject();
            default: throw new IllegalArgumentException(c.getString("do"));
        }
    }

    static InetAddress loopback() {
        try { return InetAddress.getByName("127.0.0.1"); } catch (Exception error) { throw new RuntimeException(error); }
    }

    /** The broker's defaults, without deletion of old files. */
    static JSONObject open(JSONObject c) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(c.getString("dir"));
        config.setStorePathCommitLog(c.getString("dir") + "/commitlog");
        try (ServerSocket socket = new ServerSocket(0)) { config.setHaListenPort(socket.getLocalPort()); }
        config.setFileReservedTime(24 * 365 * 50);
        config.setCleanFileForciblyEnable(false);
        config.setDiskMaxUsedSpaceRatio(95);
        String mode = c.getString("mode");
        if ("sync".equals(mode)) config.setFlushDiskType(FlushDiskType.SYNC_FLUSH);
        if ("pool".equals(mode)) config.setTransientStorePoolEnable(true);
        Properties properties = new Properties();
        JSONObject set = c.getJSONObject("set");
        if (set != null) for (String name : set.keySet()) properties.setProperty(name, set.getString(name));
        MixAll.properties2Object(properties, config);
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager("peer", true), (a, b, d, e, f, g, h) -> { }, new BrokerConfig(), new ConcurrentHashMap<>());
        System.gc();
        long before = System.nanoTime();
        if (!store.load()) throw new IllegalStateException("load() said no");
        store.start();
        settle(store);
        STORES.put(c.getIntValue("id"), store);
        return new JSONObject(Map.of("seconds", (System.nanoTime() - before) / 1e9, "end", store.getMaxPhyOffset()));
    }

    static void settle(DefaultMessageStore store) throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) Thread.sleep(0, 100_000);
    }

    static MessageExtBrokerInner message(String topic, int queue, byte[] body, String key, String tag) {
        MessageExtBrokerInner m = new MessageExtBrokerInner();
        m.setTopic(topic);
        m.setQueueId(queue);
        m.setBody(body);
        m.setBornTimestamp(System.currentTimeMillis());
        m.setBornHost(HOST);
        m.setStoreHost(HOST);
        m.setTags(tag);
        m.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(null, tag));
        m.setKeys(key);
        m.setPropertiesString(MessageDecoder.messageProperties2String(m.getProperties()));
        return m;
    }

    static byte[] body(int size) {
        byte[] body = new byte[size];
        new Random(7).nextBytes(body);
        return body;
    }

    interface Work { void run(int thread, long[] times) throws Exception; }

    /** Seconds until all threads are done, and until all is dispatched; if calls are timed, also the slowest ones. */
    static JSONObject timed(DefaultMessageStore store, int threads, int calls, boolean isTimed, Work work) throws Exception {
        long[][] times = new long[threads][isTimed ? calls : 0];
        CountDownLatch go = new CountDownLatch(1);
        AtomicLong failures = new AtomicLong();
        Thread[] all = new Thread[threads];
        for (int t = 0; t < threads; t++) {
            final int number = t;
            all[t] = new Thread(() -> {
                try { go.await(); work.run(number, times[number]); } catch (Throwable error) { error.printStackTrace(); failures.incrementAndGet(); }
            });
            all[t].start();
        }
        System.gc();
        long before = System.nanoTime();
        go.countDown();
        for (Thread thread : all) thread.join();
        double put = (System.nanoTime() - before) / 1e9;
        settle(store);
        double whole = (System.nanoTime() - before) / 1e9;
        if (failures.get() > 0) throw new IllegalStateException(failures + " threads failed");
        JSONObject told = new JSONObject(Map.of("put_seconds", put, "seconds", whole));
        if (isTimed) {
            long[] sorted = Arrays.stream(times).flatMapToLong(Arrays::stream).sorted().toArray();
            told.put("p50", sorted[sorted.length / 2] / 1e9);
            told.put("p999", sorted[(int) (sorted.length * 0.999)] / 1e9);
            told.put("max", sorted[sorted.length - 1] / 1e9);
        }
        return told;
    }

    static void check(PutMessageResult result) {
        if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) throw new IllegalStateException(result.getPutMessageStatus().name());
    }

    static JSONObject put(DefaultMessageStore store, JSONObject c) throws Exception {
        int threads = c.getIntValue("threads"), calls = c.getIntValue("count") / threads;
        boolean isTimed = c.getBooleanValue("timed");
        String topic = c.getString("topic");
        byte[] body = body(c.getIntValue("body"));
        return timed(store, threads, calls, isTimed, (thread, times) -> {
            for (int i = 0; i < calls; i++) {
                MessageExtBrokerInner m = message(topic, (thread + i) & 3, body, "key-" + thread + "-" + i, TAGS[i & 3]);
                if (!isTimed) { check(store.putMessage(m)); continue; }
                long before = System.nanoTime();
                check(store.putMessage(m));
                times[i] = System.nanoTime() - before;
            }
        });
    }

    static JSONObject batch(DefaultMessageStore store, JSONObject c) throws Exception {
        int size = c.getIntValue("size"), calls = c.getIntValue("count") / size;
        String topic = c.getString("topic");
        byte[] body = body(c.getIntValue("body"));
        return timed(store, 1, calls, false, (thread, times) -> {
            for (int i = 0; i < calls; i++) {
                List<Message> messages = new ArrayList<>(size);
                for (int k = 0; k < size; k++) messages.add(new Message(topic, TAGS[k & 3], "key-" + i + "-" + k, body));
                MessageExtBatch all = new MessageExtBatch();
                all.setTopic(topic);
                all.setQueueId(i & 3);
                all.setBody(MessageDecoder.encodeMessages(messages));
                all.setBornTimestamp(System.currentTimeMillis());
                all.setBornHost(HOST);
                all.setStoreHost(HOST);
                check(store.putMessages(all));
            }
        });
    }

    static JSONObject scan(DefaultMessageStore store, JSONObject c) throws Exception {
        boolean isDecoded = c.getBooleanValue("decoded");
        String topic = c.getString("topic");
        long count = 0, before = System.nanoTime();
        for (int queue = 0; queue < 4; queue++) {
            long at = 0, end = store.getMaxOffsetInQueue(topic, queue);
            while (at < end) {
                GetMessageResult page = store.getMessage("group", topic, queue, at, PAGE, null);
                if (page.getStatus() != GetMessageStatus.FOUND) throw new IllegalStateException(page.getStatus() + " at " + at);
                for (SelectMappedBufferResult piece : page.getMessageMapedList()) {
                    if (isDecoded) {
                        MessageExt m = MessageDecoder.decode(piece.getByteBuffer(), true, false);
                        sink += m.getBody().length + m.getTopic().length() + m.getTags().length() + m.getKeys().length() + m.getProperties().size();
                    }
                    count++;
                }
                at = page.getNextBeginOffset();
                page.release();
            }
        }
        return new JSONObject(Map.of("seconds", (System.nanoTime() - before) / 1e9, "count", count));
    }

    /** Seconds of `count` random lookups. */
    static JSONObject probe(DefaultMessageStore store, JSONObject c) {
        int count = c.getIntValue("count"), messages = c.getIntValue("messages");
        String topic = c.getString("topic"), what = c.getString("what");
        Random random = new Random(3);
        long[] offsets = new long[count], times = new long[count];
        int[] numbers = new int[count];
        for (int i = 0; i < count; i++) {
            numbers[i] = random.nextInt(messages);
            SelectMappedBufferResult piece = store.getMessage("g", topic, numbers[i] & 3, numbers[i] >> 2, 1, null).getMessageMapedList().get(0);
            offsets[i] = piece.getStartOffset();
            times[i] = piece.getByteBuffer().getLong(56);
            piece.release();
        }
        long before = System.nanoTime();
        for (int i = 0; i < count; i++) {
            switch (what) {
                case "message_at": sink += store.lookMessageByOffset(offsets[i]).getBody().length; break;
                case "query_hit": case "query_miss":
                    QueryMessageResult found = store.queryMessage(topic, ("query_hit".equals(what) ? "key-0-" : "none-") + numbers[i], 32, 0, Long.MAX_VALUE);
                    for (SelectMappedBufferResult piece : found.getMessageMapedList()) sink += MessageDecoder.decode(piece.getByteBuffer(), true, false).getBody().length;
                    found.release();
                    break;
                case "offset_by_time": sink += store.getOffsetInQueueByTime(topic, numbers[i] & 3, times[i]); break;
                default: throw new IllegalArgumentException(what);
            }
        }
        return new JSONObject(Map.of("seconds", (System.nanoTime() - before) / 1e9, "sink", sink));
    }
}
