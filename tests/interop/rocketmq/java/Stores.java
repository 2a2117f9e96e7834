import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.MessageArrivingListener;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * The real store of any version since 4.9, without a broker: many folders in one JVM, each named by a number ("id").
 * What differs between the versions is found by reflection; `Driver` does more, with RocketMQ 5 alone.
 */
public class Stores {
    private static final int READ_BATCH = 32, QUERY_MOST = 64;
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);

    private final Map<Integer, DefaultMessageStore> stores = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        new Lines().serve(new Stores()::run);
        System.exit(0);
    }

    private Object run(JSONObject command) throws Exception {
        DefaultMessageStore store = stores.get(command.getIntValue("id"));
        JSONArray requested = command.getJSONArray("requested");
        switch (command.getString("do")) {
            case "open": return open(command);
            case "put": return put(store, command);
            case "consumed": return consumed(store, requested);
            case "bodies": return bodies(store, requested);
            case "queries": return queries(store, requested, null);
            case "tags": return queries(store, requested, "T");
            case "close": return close(command.getJSONArray("ids"));
            default: throw new IllegalArgumentException(command.getString("do"));
        }
    }

    private JSONObject open(JSONObject command) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        Properties properties = new Properties();
        properties.setProperty("storePathRootDir", command.getString("dir"));
        properties.setProperty("storePathCommitLog", command.getString("dir") + "/commitlog");
        JSONObject set = command.getJSONObject("set");
        for (String name : set.keySet()) properties.setProperty(name, set.getString(name));
        MixAll.properties2Object(properties, config);
        config.setHaListenPort(0);  // any free port, when it is bound: one chosen before may be taken
        MessageArrivingListener listener = (a, b, c, d, e, f, g) -> { };
        List<Object> given = new ArrayList<>(Arrays.asList(config, new BrokerStatsManager("interop", true), listener, new BrokerConfig()));
        Constructor<?> constructor = DefaultMessageStore.class.getConstructors()[0];
        if (constructor.getParameterCount() > given.size()) given.add(new ConcurrentHashMap<>());  // topics, since 5.0
        DefaultMessageStore store = (DefaultMessageStore) constructor.newInstance(given.toArray());
        boolean loaded = store.load();
        if (loaded) {
            store.start();
            waitDispatched(store);
            stores.put(command.getIntValue("id"), store);
        }
        return JSONObject.of("load", loaded, "end", store.getMaxPhyOffset());
    }

    private static void waitDispatched(DefaultMessageStore store) throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) Thread.sleep(0, 200_000);
    }

    /** Shut all stores down in parallel, since each shutdown sleeps for seconds. */
    private JSONArray close(JSONArray ids) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < ids.size(); i++) threads.add(new Thread(stores.remove(ids.getIntValue(i))::shutdown));
        for (Thread thread : threads) thread.start();
        for (Thread thread : threads) thread.join();
        return ids;
    }

    private static MessageExt message(Class<?> type, JSONObject from) throws Exception {
        MessageExt message = (MessageExt) type.getConstructor().newInstance();
        message.setTopic(from.getString("topic"));
        message.setQueueId(from.getIntValue("queue_id"));
        message.setBody(Base64.getDecoder().decode(from.getString("body")));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        JSONObject properties = from.getJSONObject("properties");
        for (String name : properties.keySet()) MessageAccessor.putProperty(message, name, properties.getString(name));
        type.getMethod("setPropertiesString", String.class).invoke(message, MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    /** Return once all are in the log; the queues may be behind it if "settle" is false. */
    private static JSONArray put(DefaultMessageStore store, JSONObject command) throws Exception {
        Method put = Arrays.stream(DefaultMessageStore.class.getMethods())
            .filter(one -> one.getName().equals("putMessage") && !one.isBridge()).findFirst().get();
        JSONArray offsets = new JSONArray();
        JSONArray messages = command.getJSONArray("messages");
        for (int i = 0; i < messages.size(); i++) {
            PutMessageResult result = (PutMessageResult) put.invoke(store, message(put.getParameterTypes()[0], messages.getJSONObject(i)));
            if (!result.isOk()) throw new IllegalStateException(result.getPutMessageStatus().name());
            offsets.add(result.getAppendMessageResult().getWroteOffset());
        }
        if (command.getBooleanValue("settle")) waitDispatched(store);
        return offsets;
    }

    /** The log offsets of the messages that a consumer of each topic receives, in the order of queues. */
    private static JSONObject consumed(DefaultMessageStore store, JSONArray topics) throws Exception {
        JSONObject found = new JSONObject();
        for (int i = 0; i < topics.size(); i++) {
            String topic = topics.getString(i);
            Map<Integer, ?> queues = store.getConsumeQueueTable().get(topic);
            JSONArray offsets = new JSONArray();
            if (queues != null) for (int queueId : new TreeSet<>(queues.keySet())) {
                consume(store, topic, queueId, message -> offsets.add(message.getCommitLogOffset()));
            }
            found.put(topic, offsets);
        }
        return found;
    }

    /** [queue id, queue offset, log offset, body] of each message of the topics. */
    private static JSONArray bodies(DefaultMessageStore store, JSONArray topics) throws Exception {
        JSONArray found = new JSONArray();
        for (int i = 0; i < topics.size(); i++) {
            Map<Integer, ?> queues = store.getConsumeQueueTable().getOrDefault(topics.getString(i), new ConcurrentHashMap<>());
            for (int queueId : new TreeSet<>(queues.keySet())) consume(store, topics.getString(i), queueId, message -> found.add(JSONArray.of(
                queueId, message.getQueueOffset(), message.getCommitLogOffset(), Base64.getEncoder().encodeToString(message.getBody()))));
        }
        return found;
    }

    private static void consume(DefaultMessageStore store, String topic, int queueId, Consumer<MessageExt> consumer) throws Exception {
        long high = store.getMaxOffsetInQueue(topic, queueId);
        for (long at = Math.max(0, store.getMinOffsetInQueue(topic, queueId)); at < high; ) {
            GetMessageResult page = store.getMessage("group", topic, queueId, at, READ_BATCH, null);
            if (page.getStatus() == GetMessageStatus.FOUND) decode(page.getMessageBufferList(), consumer);
            long next = page.getNextBeginOffset();
            page.release();
            if (next <= at) break;
            at = next;
        }
    }

    private static void decode(List<ByteBuffer> records, Consumer<MessageExt> consumer) {
        for (ByteBuffer record : records) consumer.accept(MessageDecoder.decode(record.duplicate(), true, false));
    }

    /** [topic, key or tag] to the log offsets of what a client gets; `type` is null for keys, which each version has. */
    private static JSONArray queries(DefaultMessageStore store, JSONArray requested, String type) throws Exception {
        JSONArray answers = new JSONArray();
        for (int i = 0; i < requested.size(); i++) {
            String topic = requested.getJSONArray(i).getString(0), key = requested.getJSONArray(i).getString(1);
            QueryMessageResult result = type == null ? store.queryMessage(topic, key, QUERY_MOST, 0, Long.MAX_VALUE)
                : (QueryMessageResult) DefaultMessageStore.class
                    .getMethod("queryMessage", String.class, String.class, int.class, long.class, long.class, String.class, String.class)
                    .invoke(store, topic, key, QUERY_MOST, 0L, Long.MAX_VALUE, type, null);
            TreeSet<Long> offsets = new TreeSet<>();
            decode(result.getMessageBufferList(), message -> offsets.add(message.getCommitLogOffset()));
            result.release();
            answers.add(new JSONArray(offsets));
        }
        return answers;
    }
}
