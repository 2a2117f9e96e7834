import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Real clients of one broker: Client NAME_SERVER BROKER BROKER_NAME.  Commands and answers are lines. */
public class Client {
    private static final int PAGE = 32, TIMEOUT_MS = 60_000, LOOK_MS = 500, PAUSE_MS = 5, ONE_WAY_AHEAD = 1000, REPLY_MS = 3000;
    private static final long FOR_EVER_MS = Long.MAX_VALUE;
    private static final SendResult STORED = new SendResult();  // of a one-way send, as far as the client knows

    static { STORED.setSendStatus(SendStatus.SEND_OK); }

    private final Lines lines = new Lines();
    private final String names, address, brokerName;
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt("interop-admin");
    private final DefaultMQProducer producer = new DefaultMQProducer("interop-producer");
    private final Consumers consumers;
    private DefaultMQPullConsumer reader;
    private TransactionMQProducer transactions;

    Client(String names, String address, String brokerName) throws Exception {
        this.names = names;
        this.address = address;
        this.brokerName = brokerName;
        this.consumers = new Consumers(names);
        admin.setNamesrvAddr(names);
        admin.setMqClientApiTimeout(TIMEOUT_MS);
        producer.setNamesrvAddr(names);
        producer.setMqClientApiTimeout(TIMEOUT_MS);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setRetryTimesWhenSendFailed(0);  // so that an acknowledged message is stored once
        admin.start();
        producer.start();
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("rocketmq.client.rebalance.waitInterval", String.valueOf(LOOK_MS));
        Client client = new Client(arguments[0], arguments[1], arguments[2]);
        client.lines.say(new JSONObject());
        client.lines.serve(client::run);
        System.exit(0);
    }

    private Object run(JSONObject command) throws Exception {
        switch (command.getString("do")) {
            case "topic": return topic(command);
            case "delete_topic": admin.deleteTopicInBroker(Set.of(address), command.getString("topic")); return new JSONObject();
            case "group": return group(command);
            case "request_mode": return requestMode(command);
            case "topics": return admin.getAllTopicConfig(address, TIMEOUT_MS).getTopicConfigTable();
            case "groups": return admin.getAllSubscriptionGroup(address, TIMEOUT_MS).getSubscriptionGroupTable();
            case "offsets": return offsets(command);
            case "commit": return commit(command);
            case "send": return send(command);
            case "send_batch": return sendBatch(command);
            case "send_transaction": return sendTransaction(command);
            case "transact": return transact(command);
            case "stream": return stream(command);
            case "flood": return flood(command);
            case "ask": return ask(command);
            case "read": return read(command);
            case "subscribe": return subscribe(command);
            case "start_consumer": return consumers.start(command);
            case "stop_consumer": return consumers.stop(command);
            case "query": return query(command.getJSONArray("requested"));
            case "query_tags": return queryTags(command.getString("cluster"), command.getJSONArray("requested"));
            case "view": return view(command.getJSONArray("requested"));
            case "times": return times(command.getJSONArray("requested"));
            default: throw new IllegalArgumentException(command.getString("do"));
        }
    }

    // The broker's configuration

    private JSONObject topic(JSONObject command) throws Exception {
        TopicConfig topic = new TopicConfig(command.getString("topic"));
        topic.setReadQueueNums(command.getIntValue("queues"));
        topic.setWriteQueueNums(command.getIntValue("queues"));
        if (command.containsKey("perm")) topic.setPerm(command.getIntValue("perm"));
        JSONObject attributes = command.getJSONObject("attributes");  // with their + sign
        if (attributes != null) for (String name : attributes.keySet()) topic.getAttributes().put(name, attributes.getString(name));
        admin.createAndUpdateTopicConfig(address, topic);
        return new JSONObject();
    }

    private JSONObject group(JSONObject command) throws Exception {
        admin.createAndUpdateSubscriptionGroupConfig(address, command.getObject("group", SubscriptionGroupConfig.class));
        return new JSONObject();
    }

    private JSONObject requestMode(JSONObject command) throws Exception {
        MessageRequestMode mode = MessageRequestMode.valueOf(command.getString("mode"));
        int share = command.getIntValue("share");
        admin.setMessageRequestMode(address, command.getString("topic"), command.getString("group"), mode, share, TIMEOUT_MS);
        return new JSONObject();
    }

    /** Queue id to the group's committed offset according to the broker; -1 if there is none. */
    private JSONObject offsets(JSONObject command) throws Exception {
        DefaultMQPullConsumer consumer = puller(command.getString("group"));
        JSONObject found = new JSONObject();
        for (MessageQueue queue : queues(consumer, command.getString("topic"))) {
            found.put(String.valueOf(queue.getQueueId()), consumer.fetchConsumeOffset(queue, true));
        }
        consumer.shutdown();  // otherwise it would take queues from the group's next member
        return found;
    }

    private JSONObject commit(JSONObject command) throws Exception {
        MessageQueue queue = new MessageQueue(command.getString("topic"), brokerName, command.getIntValue("queue_id"));
        admin.updateConsumeOffset(address, command.getString("group"), queue, command.getLongValue("offset"));
        return new JSONObject();
    }

    // Producers

    private static Message message(JSONObject from) {
        Message message = new Message(from.getString("topic"), Base64.getDecoder().decode(from.getString("body")));
        if (from.getString("tags") != null) message.setTags(from.getString("tags"));
        if (from.getJSONArray("keys") != null) message.setKeys(from.getJSONArray("keys").toList(String.class));
        if (from.containsKey("deliver_ms")) message.setDeliverTimeMs(from.getLongValue("deliver_ms"));
        if (from.containsKey("delay")) message.setDelayTimeLevel(from.getIntValue("delay"));
        JSONObject properties = from.getJSONObject("properties");
        if (properties != null) for (String name : properties.keySet()) message.putUserProperty(name, properties.getString(name));
        return message;
    }

    private MessageQueue queue(JSONObject from) {
        return new MessageQueue(from.getString("topic"), brokerName, from.getIntValue("queue_id"));
    }

    /** [status, client's id, offset id or several, queue id, queue offset] */
    private static JSONArray told(SendResult result) {
        return JSONArray.of(
            result.getSendStatus().name(), result.getMsgId(), result.getOffsetMsgId(),
            result.getMessageQueue().getQueueId(), result.getQueueOffset());
    }

    private JSONArray send(JSONObject command) throws Exception {
        JSONArray results = new JSONArray();
        JSONArray messages = command.getJSONArray("messages");
        for (int i = 0; i < messages.size(); i++) {
            JSONObject from = messages.getJSONObject(i);
            results.add(told(from.containsKey("queue_id") ? producer.send(message(from), queue(from)) : producer.send(message(from))));
        }
        return results;
    }

    private JSONArray sendBatch(JSONObject command) throws Exception {
        List<Message> batch = new ArrayList<>();
        JSONArray messages = command.getJSONArray("messages");
        for (int i = 0; i < messages.size(); i++) batch.add(message(messages.getJSONObject(i)));
        return told(producer.send(batch, queue(messages.getJSONObject(0))));
    }

    /** Send transactions; each message has its own "decision". */
    private JSONArray sendTransaction(JSONObject command) throws Exception {
        if (transactions == null) transactions = transactionProducer();
        JSONArray results = new JSONArray();
        JSONArray messages = command.getJSONArray("messages");
        for (int i = 0; i < messages.size(); i++) {
            JSONObject from = messages.getJSONObject(i);
            results.add(told(transactions.sendMessageInTransaction(message(from), from.getString("decision"))));
        }
        return results;
    }

    /**
     * Send "count" numbered transactions: of ten, the last two are rolled back, and the one before them is decided when the broker asks.
     */
    private JSONObject transact(JSONObject command) throws Exception {
        if (transactions == null) transactions = transactionProducer();
        for (int number = 0; number < command.getIntValue("count"); number++) {
            Message message = new Message(command.getString("topic"), "tag", String.valueOf(number).getBytes());
            message.putUserProperty("answer", "COMMIT_MESSAGE");
            String decision = number % 10 > 7 ? "ROLLBACK_MESSAGE" : number % 10 == 7 ? "UNKNOW" : "COMMIT_MESSAGE";
            SendStatus status = transactions.sendMessageInTransaction(message, decision).getSendStatus();
            if (status != SendStatus.SEND_OK) throw new IllegalStateException(status.name());
        }
        return new JSONObject();
    }

    private TransactionMQProducer transactionProducer() throws MQClientException {
        TransactionMQProducer made = new TransactionMQProducer("interop-transactions");
        made.setNamesrvAddr(names);
        made.setMqClientApiTimeout(TIMEOUT_MS);
        made.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message message, Object decision) {
                return LocalTransactionState.valueOf((String) decision);
            }

            /** Answer the broker's check of an undecided transaction with the message's "answer". */
            @Override public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String answer = message.getUserProperty("answer");
                return answer == null ? LocalTransactionState.UNKNOW : LocalTransactionState.valueOf(answer);
            }
        });
        made.start();
        return made;
    }

    /** Send one message a call over "queues" queues, up to "count" or until the broker is gone; print each acknowledgement. */
    private JSONObject stream(JSONObject command) throws Exception {
        for (int number = command.getIntValue("first"), i = 0; i < command.getIntValue("count"); number++, i++) {
            MessageQueue queue = new MessageQueue(command.getString("topic"), brokerName, number % command.getIntValue("queues"));
            Message message = new Message(command.getString("topic"), "tag", "key-" + number, String.valueOf(number).getBytes());
            SendResult result;
            try {
                result = producer.send(message, queue);
            } catch (Exception error) {
                return JSONObject.of("failed", error.toString(), "first", number);
            }
            if (result.getSendStatus() != SendStatus.SEND_OK) throw new IllegalStateException(result.toString());
            lines.line("[" + number + "," + queue.getQueueId() + "," + result.getQueueOffset() + ",\"" + result.getOffsetMsgId() + "\"]");
        }
        return new JSONObject();
    }

    /**
     * Send "count" messages, numbered from "first", as fast as the broker takes them, "batch" a call, with "ahead" calls unacknowledged.
     *
     * A body is the message's number, with spaces up to "size" bytes.  A "persistent" flood sends again what was not acknowledged.
     * "mode" is async, sync or oneway; "delay" is a level.
     */
    private JSONObject flood(JSONObject command) throws Exception {
        int first = command.getIntValue("first"), end = first + command.getIntValue("count");
        int batch = Math.max(1, command.getIntValue("batch")), ahead = command.getIntValue("ahead");
        boolean isPersistent = command.getBooleanValue("persistent");
        Semaphore places = new Semaphore(ahead);
        ConcurrentLinkedQueue<Integer> again = new ConcurrentLinkedQueue<>();
        AtomicReference<Object> failure = new AtomicReference<>();
        AtomicInteger failures = new AtomicInteger();
        long began = System.nanoTime();
        for (int next = first; failure.get() == null; ) {
            places.acquire();
            Integer chosen = again.poll();
            if (chosen != null) Thread.sleep(PAUSE_MS);  // the broker may be gone
            else if (next < end) {
                chosen = next;
                next += batch;
            }
            if (chosen == null) {  // all are sent: wait for the last answers, which may be failures
                places.acquire(ahead - 1);
                if (again.isEmpty()) break;
                places.release(ahead);
                continue;
            }
            int begin = chosen;
            SendCallback done = new SendCallback() {
                @Override public void onSuccess(SendResult result) { finish(result.getSendStatus() == SendStatus.SEND_OK, result); }
                @Override public void onException(Throwable error) { finish(false, error); }

                private void finish(boolean isStored, Object answer) {
                    if (!isStored) {
                        failures.incrementAndGet();
                        if (isPersistent) again.add(begin);
                        else failure.set(answer);
                    }
                    places.release();
                }
            };
            try {
                sendFlood(command, begin, Math.min(end, begin + batch), done);
            } catch (Exception error) {
                done.onException(error);
                Thread.sleep(LOOK_MS);
            }
        }
        if (failure.get() != null) throw new IllegalStateException(failure.get().toString());
        return JSONObject.of("seconds", (System.nanoTime() - began) / 1e9, "failures", failures.get());
    }

    private void sendFlood(JSONObject command, int begin, int end, SendCallback done) throws Exception {
        String topic = command.getString("topic");
        List<Message> messages = new ArrayList<>();
        for (int number = begin; number < end; number++) {
            byte[] body = String.valueOf(number).getBytes();
            int size = body.length;
            body = Arrays.copyOf(body, Math.max(size, command.getIntValue("size")));
            Arrays.fill(body, size, body.length, (byte) ' ');
            Message message = new Message(topic, "tag", "flood-" + number, body);
            if (command.containsKey("delay")) message.setDelayTimeLevel(command.getIntValue("delay"));
            messages.add(message);
        }
        MessageQueue queue = new MessageQueue(topic, brokerName, begin / Math.max(1, command.getIntValue("batch")) % command.getIntValue("queues"));
        switch (command.containsKey("mode") ? command.getString("mode") : "async") {
            case "sync": done.onSuccess(command.containsKey("batch") ? producer.send(messages, queue) : producer.send(messages.get(0), queue)); break;
            case "oneway":
                producer.sendOneway(messages.get(0), queue);
                if (begin % ONE_WAY_AHEAD == 0) producer.maxOffset(queue);  // answered after them; a backlog of seconds would end the connection
                done.onSuccess(STORED);
                break;
            default:
                if (command.containsKey("batch")) producer.send(messages, queue, done);
                else producer.send(messages.get(0), queue, done);
        }
    }

    /** Send "count" requests, numbered from "first", one after the other, each until its reply is there; 5.3.3 ends a wait when the request is sent. */
    private JSONObject ask(JSONObject command) throws Exception {
        int end = command.getIntValue("first") + command.getIntValue("count"), failures = 0;
        String last = "";
        for (int number = command.getIntValue("first"); number < end; ) {
            byte[] body = String.valueOf(number).getBytes();
            String reply;
            try {
                CompletableFuture<Message> answer = new CompletableFuture<>();
                producer.request(new Message(command.getString("topic"), "ask", body), new RequestCallback() {
                    @Override public void onSuccess(Message found) { if (found != null) answer.complete(found); }
                    @Override public void onException(Throwable error) { answer.completeExceptionally(error); }
                }, REPLY_MS);
                reply = new String(answer.get(2 * REPLY_MS, TimeUnit.MILLISECONDS).getBody());
            } catch (Exception error) {  // the broker may be gone, or the reply was lost with it
                failures++;
                last = error.toString();
                Thread.sleep(PAUSE_MS);
                continue;
            }
            if (!reply.equals("re: " + number)) throw new IllegalStateException(number + " is answered with " + reply);
            number++;
        }
        return JSONObject.of("failures", failures, "last", last);
    }

    // Consumers

    private DefaultMQPullConsumer puller(String group) throws MQClientException {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(names);
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setConsumerPullTimeoutMillis(TIMEOUT_MS);
        consumer.start();
        return consumer;
    }

    private static Set<MessageQueue> queues(DefaultMQPullConsumer consumer, String topic) throws MQClientException {
        return new TreeSet<>(consumer.fetchSubscribeMessageQueues(topic));
    }

    /** Every message of a topic as a consumer receives it, queue by queue; with "brief" [queue, offset, physical offset, body]. */
    private JSONArray read(JSONObject command) throws Exception {
        if (reader == null) reader = puller("interop-reader");
        String tags = command.getString("tags");
        JSONArray found = new JSONArray();
        for (MessageQueue queue : queues(reader, command.getString("topic"))) {
            long end = reader.maxOffset(queue);
            for (long at = reader.minOffset(queue); at < end; ) {
                PullResult page = reader.pull(queue, tags == null ? "*" : tags, at, PAGE);
                if (page.getMsgFoundList() != null) {
                    for (MessageExt message : page.getMsgFoundList()) found.add(received(message, command.getBooleanValue("brief")));
                }
                if (page.getNextBeginOffset() <= at) throw new IllegalStateException(queue + " at " + at + ": " + page);
                at = page.getNextBeginOffset();
            }
        }
        return found;
    }

    private static Object received(MessageExt message, boolean brief) {
        if (!brief) return Told.message(message);
        String body = Base64.getEncoder().encodeToString(message.getBody());
        return JSONArray.of(message.getQueueId(), message.getQueueOffset(), message.getCommitLogOffset(), body);
    }

    /**
     * Run a push consumer until it has processed "count" messages, or for "patience_ms"; it commits its offsets at the end.
     * The first "failures" tries of each message fail.
     */
    private JSONArray subscribe(JSONObject command) throws Exception {
        ConcurrentLinkedQueue<Object> received = new ConcurrentLinkedQueue<>();
        Semaphore done = new Semaphore(0);
        int failures = command.getIntValue("failures");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.getString("group"));
        consumer.setNamesrvAddr(names);
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setPollNameServerInterval(LOOK_MS);  // a retry topic is created meanwhile
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAwaitTerminationMillisWhenShutdown(TIMEOUT_MS);  // so that the last failed message is sent back
        if (command.containsKey("max_tries")) consumer.setMaxReconsumeTimes(command.getIntValue("max_tries"));
        if (command.containsKey("sql")) consumer.subscribe(command.getString("topic"), MessageSelector.bySql(command.getString("sql")));
        else consumer.subscribe(command.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                received.add(Told.message(message));
                if (message.getReconsumeTimes() < failures) {
                    done.release(command.getBooleanValue("count_failures") ? 1 : 0);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                done.release();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        done.tryAcquire(command.getIntValue("count"), command.getLongValue("patience_ms"), java.util.concurrent.TimeUnit.MILLISECONDS);
        consumer.shutdown();
        return new JSONArray(received);
    }

    // Single messages

    /** [topic, key] to the physical offsets that a query finds, in order. */
    private JSONArray query(JSONArray requested) throws Exception {
        JSONArray answers = new JSONArray();
        for (int i = 0; i < requested.size(); i++) {
            TreeSet<Long> offsets = new TreeSet<>();
            try {
                List<MessageExt> found = admin.queryMessage(requested.getJSONArray(i).getString(0), requested.getJSONArray(i).getString(1), 64, 0, FOR_EVER_MS)
                    .getMessageList();
                for (MessageExt message : found) offsets.add(message.getCommitLogOffset());
            } catch (MQClientException nothing) {
                if (!String.valueOf(nothing.getMessage()).contains("no message")) throw nothing;
            }
            answers.add(new JSONArray(offsets));
        }
        return answers;
    }

    /** [topic, tag] to the log offsets that the index gives; clients before 5.4 have no such query. */
    private JSONArray queryTags(String cluster, JSONArray requested) throws Exception {
        java.lang.reflect.Method query = DefaultMQAdminExt.class.getMethod(
            "queryMessage", String.class, String.class, String.class, int.class, long.class, long.class, String.class, String.class);
        JSONArray answers = new JSONArray();
        for (int i = 0; i < requested.size(); i++) {
            TreeSet<Long> offsets = new TreeSet<>();
            JSONArray pair = requested.getJSONArray(i);
            try {
                Object found = query.invoke(admin, cluster, pair.getString(0), pair.getString(1), 64, 0L, FOR_EVER_MS, "T", null);
                for (MessageExt message : ((org.apache.rocketmq.client.QueryResult) found).getMessageList()) offsets.add(message.getCommitLogOffset());
            } catch (java.lang.reflect.InvocationTargetException nothing) {
                if (!String.valueOf(nothing.getCause().getMessage()).contains("no message")) throw nothing;
            }
            answers.add(new JSONArray(offsets));
        }
        return answers;
    }

    /** [topic, offset id] to the message. */
    private JSONArray view(JSONArray requested) throws Exception {
        JSONArray answers = new JSONArray();
        for (int i = 0; i < requested.size(); i++) {
            answers.add(Told.message(producer.viewMessage(requested.getJSONArray(i).getString(0), requested.getJSONArray(i).getString(1))));
        }
        return answers;
    }

    /** [topic, queue, time] to [lower, upper]. */
    private JSONArray times(JSONArray requested) throws Exception {
        JSONArray answers = new JSONArray();
        for (int i = 0; i < requested.size(); i++) {
            JSONArray one = requested.getJSONArray(i);
            MessageQueue queue = new MessageQueue(one.getString(0), brokerName, one.getIntValue(1));
            answers.add(JSONArray.of(
                admin.searchLowerBoundaryOffset(queue, one.getLongValue(2)), admin.searchUpperBoundaryOffset(queue, one.getLongValue(2))));
        }
        return answers;
    }
}
