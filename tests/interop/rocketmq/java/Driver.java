import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.SystemClock;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * The real store without a broker; commands and answers are lines.
 * Stores are named by a number ("id"), so that several can be open.
 */
public class Driver {
    private static final int BLANK = 0xCBD43194;
    private static final int READ_BATCH = 32;

    private final Map<Integer, Store> stores = new HashMap<>();
    private final Lines lines = new Lines();

    /** A store whose clock can be set. */
    static class Store extends DefaultMessageStore {
        volatile long heldMs;
        private final SystemClock clock = new SystemClock() {
            @Override public long now() {
                long held = heldMs;
                return held > 0 ? held : System.currentTimeMillis();
            }
        };

        Store(MessageStoreConfig config, ConcurrentHashMap<String, TopicConfig> topics) throws IOException {
            super(config, new BrokerStatsManager("interop", true), (a, b, c, d, e, f, g) -> { }, new BrokerConfig(), topics);
        }

        @Override public SystemClock getSystemClock() { return clock; }
    }

    public static void main(String[] arguments) throws Exception {
        Driver driver = new Driver();
        driver.lines.serve(driver::run);
        System.exit(0);
    }

    private Object run(JSONObject command) throws Exception {
        int id = command.getIntValue("id");
        Store store = stores.get(id);
        switch (command.getString("do")) {
            case "open": return open(id, command);
            case "put": return put(store, command);
            case "batch": return batch(store, command);
            case "settle": waitDispatched(store); return new JSONObject();
            case "stream": return stream(store, command);
            case "messages": return messages(store);
            case "queues": return queues(store);
            case "counts": return counts(store);
            case "times": return times(store, command.getJSONArray("requested"));
            case "queries": return queries(store, command);
            case "close": return close(command.getJSONArray("ids"));
            default: throw new IllegalArgumentException(command.getString("do"));
        }
    }

    // Opening and closing

    private JSONObject open(int id, JSONObject command) throws Exception {
        Store store = new Store(config(command), batchTopics(command.getJSONArray("batch")));
        store.heldMs = command.getLongValue("clock");
        long before = System.nanoTime();
        boolean loaded = store.load();
        double loadMs = (System.nanoTime() - before) / 1e6;
        if (loaded) {
            store.start();
            waitDispatched(store);
            stores.put(id, store);
        }
        double allMs = (System.nanoTime() - before) / 1e6;
        return new JSONObject(Map.of("load", loaded, "load_ms", loadMs, "all_ms", allMs, "end", store.getMaxPhyOffset()));
    }

    private static ConcurrentHashMap<String, TopicConfig> batchTopics(JSONArray names) {
        ConcurrentHashMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        for (int i = 0; names != null && i < names.size(); i++) {
            TopicConfig topic = new TopicConfig(names.getString(i));
            topic.setAttributes(Map.of("queue.type", "BatchCQ"));
            topics.put(names.getString(i), topic);
        }
        return topics;
    }

    private static MessageStoreConfig config(JSONObject command) throws IOException {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(command.getString("dir"));
        config.setStorePathCommitLog(command.getString("dir") + "/commitlog");
        try (ServerSocket socket = new ServerSocket(0)) { config.setHaListenPort(socket.getLocalPort()); }
        config.setFileReservedTime(24 * 365 * 50);  // no file may be deleted during a test
        config.setCleanFileForciblyEnable(false);
        config.setDiskMaxUsedSpaceRatio(95);
        Properties properties = new Properties();
        JSONObject set = command.getJSONObject("set");
        if (set != null) for (String name : set.keySet()) properties.setProperty(name, set.getString(name));
        MixAll.properties2Object(properties, config);
        return config;
    }

    private static void waitDispatched(Store store) throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) Thread.sleep(0, 200_000);
    }

    /** Shut all stores down in parallel, since each shutdown sleeps for seconds. */
    private JSONArray close(JSONArray ids) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < ids.size(); i++) {
            Store store = stores.remove(ids.getIntValue(i));
            Thread thread = new Thread(store::shutdown);
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) thread.join();
        return ids;
    }

    // Writing

    private static InetSocketAddress host(String text) throws Exception {
        int colon = text.lastIndexOf(':');
        return new InetSocketAddress(InetAddress.getByName(text.substring(0, colon)), Integer.parseInt(text.substring(colon + 1)));
    }

    private static <M extends MessageExt> M address(M message, JSONObject from) throws Exception {
        message.setTopic(from.getString("topic"));
        message.setQueueId(from.getIntValue("queue_id"));
        message.setFlag(from.getIntValue("flag"));
        message.setSysFlag(from.getIntValue("sys_flag"));
        message.setBornTimestamp(from.getLongValue("born_timestamp_ms"));
        message.setReconsumeTimes(from.getIntValue("reconsume_times"));
        message.setPreparedTransactionOffset(from.getLongValue("prepared_transaction_offset"));
        message.setBornHost(host(from.getString("born_host")));
        message.setStoreHost(host(from.getString("store_host")));
        if (message.getBornHost() instanceof InetSocketAddress b && b.getAddress() instanceof java.net.Inet6Address) message.setBornHostV6Flag();
        if (message.getStoreHost() instanceof InetSocketAddress s && s.getAddress() instanceof java.net.Inet6Address) message.setStoreHostAddressV6Flag();
        return message;
    }

    private static MessageExtBrokerInner inner(JSONObject from) throws Exception {
        MessageExtBrokerInner message = address(new MessageExtBrokerInner(), from);
        message.setBody(Base64.getDecoder().decode(from.getString("body")));
        String properties = from.getString("properties");
        MessageAccessor.setProperties(message, MessageDecoder.string2messageProperties(properties));
        message.setPropertiesString(properties);
        return message;
    }

    private static JSONArray result(PutMessageResult result) {
        if (!result.isOk()) return JSONArray.of(result.getPutMessageStatus().name());
        return JSONArray.of(
            result.getPutMessageStatus().name(), result.getAppendMessageResult().getWroteOffset(),
            result.getAppendMessageResult().getWroteBytes(), result.getAppendMessageResult().getLogicsOffset());
    }

    private JSONArray put(Store store, JSONObject command) throws Exception {
        JSONArray results = new JSONArray();
        JSONArray messages = command.getJSONArray("messages");
        for (int i = 0; i < messages.size(); i++) {
            JSONObject message = messages.getJSONObject(i);
            if (message.containsKey("clock")) store.heldMs = message.getLongValue("clock");
            results.add(result(store.putMessage(inner(message))));
        }
        waitDispatched(store);
        return results;
    }

    /** Batch wire form: size, magic 0, body checksum 0, flag, body length, body, properties length, properties. */
    private static byte[] wire(JSONObject from) {
        byte[] body = Base64.getDecoder().decode(from.getString("body"));
        byte[] properties = from.getString("properties").getBytes(StandardCharsets.UTF_8);
        ByteBuffer buffer = ByteBuffer.allocate(22 + body.length + properties.length);
        buffer.putInt(buffer.capacity()).putInt(0).putInt(0).putInt(from.getIntValue("flag"));
        buffer.putInt(body.length).put(body).putShort((short) properties.length).put(properties);
        return buffer.array();
    }

    private JSONArray batch(Store store, JSONObject command) throws Exception {
        JSONArray messages = command.getJSONArray("messages");
        MessageExtBatch batch = address(new MessageExtBatch(), messages.getJSONObject(0));
        java.io.ByteArrayOutputStream bytes = new java.io.ByteArrayOutputStream();
        for (int i = 0; i < messages.size(); i++) bytes.write(wire(messages.getJSONObject(i)));
        batch.setBody(bytes.toByteArray());
        if (command.containsKey("clock")) store.heldMs = command.getLongValue("clock");
        JSONArray answer = result(store.putMessages(batch));
        waitDispatched(store);
        return answer;
    }

    /** Put copies of one message until there are "count" or this process is killed; print [offset, number] of each acknowledgement. */
    private JSONObject stream(Store store, JSONObject command) throws Exception {
        JSONObject from = command.getJSONObject("message");
        int count = command.getIntValue("count");
        boolean quiet = command.getBooleanValue("quiet");
        int queues = Math.max(1, command.getIntValue("queues"));
        for (int number = 0; number < count; number++) {
            MessageExtBrokerInner message = inner(from);
            message.setQueueId(number % queues);
            MessageAccessor.putProperty(message, "KEYS", "key-" + number);
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            PutMessageResult result = store.putMessage(message);
            if (!result.isOk()) throw new IllegalStateException(result.getPutMessageStatus().name());
            if (!quiet) lines.line("[" + result.getAppendMessageResult().getWroteOffset() + "," + number + "]");
        }
        waitDispatched(store);
        return new JSONObject(Map.of("end", store.getMaxPhyOffset()));
    }

    // Reading

    private static JSONObject messages(Store store) throws Exception {
        JSONArray found = new JSONArray();
        JSONArray blanks = new JSONArray();
        long at = Math.max(0, store.getCommitLog().getMinOffset()); // -1 without files
        int fileSize = store.getMessageStoreConfig().getMappedFileSizeCommitLog();
        while (at < store.getMaxPhyOffset()) {
            SelectMappedBufferResult piece = store.getCommitLog().getData(at, false);
            ByteBuffer bytes = piece.getByteBuffer();
            int size = bytes.getInt(0);
            if (bytes.getInt(4) == BLANK) {
                blanks.add(JSONArray.of(at, size));
                at = (at / fileSize + 1) * fileSize;
            } else {
                byte[] record = new byte[size];
                bytes.get(record);
                found.add(Told.message(MessageDecoder.decode(ByteBuffer.wrap(record), true, false)));
                at += size;
            }
            piece.release();
        }
        return new JSONObject(Map.of("messages", found, "blanks", blanks));
    }

    private static JSONArray queues(Store store) throws Exception {
        JSONArray found = new JSONArray();
        for (String topic : new TreeSet<>(store.getConsumeQueueTable().keySet())) {
            for (int queueId : new TreeSet<>(store.getConsumeQueueTable().get(topic).keySet())) found.add(queue(store, topic, queueId));
        }
        return found;
    }

    /** Messages of each queue. */
    private static JSONArray counts(Store store) throws Exception {
        JSONArray found = new JSONArray();
        for (String topic : store.getConsumeQueueTable().keySet()) {
            for (int queueId : store.getConsumeQueueTable().get(topic).keySet()) {
                found.add(store.getMaxOffsetInQueue(topic, queueId) - store.getMinOffsetInQueue(topic, queueId));
            }
        }
        return found;
    }

    private static JSONObject queue(Store store, String topic, int queueId) throws Exception {
        ConsumeQueueInterface queue = store.getConsumeQueueTable().get(topic).get(queueId);
        long low = store.getMinOffsetInQueue(topic, queueId), high = store.getMaxOffsetInQueue(topic, queueId);
        JSONArray units = new JSONArray();
        for (long place = Math.max(0, low); place < high; place++) { // -1 in an empty batch queue
            CqUnit unit = queue.get(place);
            units.add(unit == null ? null : JSONArray.of(unit.getPos(), unit.getSize(), unit.getTagsCode()));
        }
        JSONObject told = new JSONObject();
        told.put("topic", topic);
        told.put("queue_id", queueId);
        told.put("min_offset", low);
        told.put("max_offset", high);
        told.put("units", units);
        told.put("consumed", consumed(store, topic, queueId, low, high));
        return told;
    }

    /** The messages that a consumer of the whole queue receives. */
    private static JSONArray consumed(Store store, String topic, int queueId, long low, long high) {
        JSONArray offsets = new JSONArray();
        for (long at = Math.max(0, low); at < high; ) {
            GetMessageResult page = store.getMessage("group", topic, queueId, at, READ_BATCH, null);
            if (page.getStatus() == GetMessageStatus.FOUND) {
                for (SelectMappedBufferResult piece : page.getMessageMapedList()) {
                    MessageExt message = MessageDecoder.decode(piece.getByteBuffer().duplicate(), false, false);
                    if (message != null) offsets.add(message.getCommitLogOffset());  // else the unit of a deleted record
                }
            }
            long next = page.getNextBeginOffset();
            page.release();
            if (next <= at) break;
            at = next;
        }
        return offsets;
    }

    /** [topic, queue, time] to [lower, upper]. */
    private static JSONArray times(Store store, JSONArray requested) {
        JSONArray answers = new JSONArray();
        for (int i = 0; i < requested.size(); i++) {
            JSONArray one = requested.getJSONArray(i);
            String topic = one.getString(0);
            answers.add(JSONArray.of(
                store.getOffsetInQueueByTime(topic, one.getIntValue(1), one.getLongValue(2), BoundaryType.LOWER),
                store.getOffsetInQueueByTime(topic, one.getIntValue(1), one.getLongValue(2), BoundaryType.UPPER)));
        }
        return answers;
    }

    /** [topic, key] to the physical offsets of the messages that a client gets. */
    private static JSONArray queries(Store store, JSONObject command) {
        JSONArray answers = new JSONArray();
        JSONArray requested = command.getJSONArray("requested");
        for (int i = 0; i < requested.size(); i++) {
            JSONArray one = requested.getJSONArray(i);
            QueryMessageResult result = store.queryMessage(one.getString(0), one.getString(1), 64, 0, Long.MAX_VALUE);
            TreeSet<Long> offsets = new TreeSet<>();
            for (SelectMappedBufferResult piece : result.getMessageMapedList()) {
                offsets.add(MessageDecoder.decode(piece.getByteBuffer().duplicate(), false, false).getCommitLogOffset());
            }
            result.release();
            answers.add(new JSONArray(offsets));
        }
        return answers;
    }
}
