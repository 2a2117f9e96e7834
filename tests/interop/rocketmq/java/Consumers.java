import com.alibaba.fastjson2.JSONObject;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * Push consumers that run until they are stopped, each with a name.
 *
 * A consumer appends one line a message to a file, "NAME QUEUE OFFSET TRIES BODY", before it acknowledges the message.  Consumers of
 * several JVMs may share the file: its lines have the order in which the messages were processed, and survive a killed JVM.
 */
class Consumers {
    private static final int TIMEOUT_MS = 60_000, LOOK_MS = 500, SHORTEST_DELAY = 1;

    private final String names;
    private final Map<String, DefaultMQPushConsumer> running = new HashMap<>();
    private DefaultMQProducer answering;

    Consumers(String names) { this.names = names; }

    /** The first "failures" tries of each message fail, and come again after a second, or after the time of "retry_level". */
    JSONObject start(JSONObject command) throws Exception {
        String name = command.getString("name");
        int failures = command.getIntValue("failures");
        boolean isAnswering = command.getBooleanValue("answers");
        int retryLevel = command.containsKey("retry_level") ? command.getIntValue("retry_level") : SHORTEST_DELAY;
        FileOutputStream file = new FileOutputStream(command.getString("file"), true);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.getString("group"));
        consumer.setNamesrvAddr(names);
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setInstanceName(name);
        consumer.setPollNameServerInterval(LOOK_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAwaitTerminationMillisWhenShutdown(TIMEOUT_MS);
        if (command.getBooleanValue("broadcast")) consumer.setMessageModel(MessageModel.BROADCASTING);
        if (command.getBooleanValue("server_rebalance")) consumer.setClientRebalance(false);
        if (command.containsKey("max_tries")) consumer.setMaxReconsumeTimes(command.getIntValue("max_tries"));
        if (command.containsKey("invisible_ms")) consumer.setPopInvisibleTime(command.getLongValue("invisible_ms"));
        String sql = command.getString("sql");
        consumer.subscribe(command.getString("topic"), sql == null ? MessageSelector.byTag("*") : MessageSelector.bySql(sql));
        if (command.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                record(file, name, messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                record(file, name, messages);
                if (isAnswering && !answer(messages)) return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                if (messages.get(0).getReconsumeTimes() >= failures) return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                context.setDelayLevelWhenNextConsume(retryLevel);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        if (isAnswering && answering == null) {
            answering = new DefaultMQProducer("answering");
            answering.setNamesrvAddr(names);
            answering.start();
        }
        consumer.start();
        running.put(name, consumer);
        return new JSONObject();
    }

    /** Stop a consumer cleanly: it finishes what it has begun, and commits its offsets. */
    JSONObject stop(JSONObject command) {
        running.remove(command.getString("name")).shutdown();
        return new JSONObject();
    }

    /** Send the reply to each request; return whether all were taken. */
    private boolean answer(List<MessageExt> requests) {
        try {
            for (MessageExt one : requests) {
                answering.send(MessageUtil.createReplyMessage(one, ("re: " + new String(one.getBody())).getBytes()));
            }
            return true;
        } catch (Exception error) {  // the broker may be gone, or the client waits no longer
            return false;
        }
    }

    private static void record(FileOutputStream file, String name, List<MessageExt> messages) {
        StringBuilder lines = new StringBuilder();
        for (MessageExt message : messages) {
            lines.append(name).append(' ').append(message.getQueueId()).append(' ').append(message.getQueueOffset()).append(' ')
                .append(message.getReconsumeTimes()).append(' ').append(new String(message.getBody(), StandardCharsets.UTF_8)).append('\n');
        }
        try {
            file.write(lines.toString().getBytes(StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }
}
