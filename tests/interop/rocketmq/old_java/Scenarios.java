import java.lang.reflect.Method;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/**
 * Scenarios of `python_client_driver.py` that a server's kills interrupt, with clients of any version.
 *
 * Arguments: SCENARIO ADDRESS TOPIC, and those of `produce` or `consume`.
 */
public class Scenarios extends Common {
    static final int GROUPS = 5, DELAY_LEVEL = 2, DELAY_S = 5;
    static final String SQL = "sql:";

    static synchronized void print(String format, Object... values) { System.out.printf(format + "%n", values); }

    /** Return what a call returns in the end, while a server is killed and started again. */
    static <T> T retried(Callable<T> call) throws InterruptedException {
        while (true) {
            try {
                return call.call();
            } catch (Exception error) {
                Thread.sleep(200);
            }
        }
    }

    static SendResult acknowledged(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) throw new IllegalStateException(result.toString());
        return result;
    }

    static SendResult send(DefaultMQProducer producer, String topic, String kind, int number) throws Exception {
        if (kind.equals("fifo")) {
            Message message = new Message(topic, "group-" + number % GROUPS, text(number));
            return producer.send(message, (queues, one, group) -> queues.get((Integer) group % queues.size()), number % GROUPS);
        }
        if (kind.equals("delay")) {
            String body = number + " " + (System.currentTimeMillis() / 1000 + DELAY_S);
            Message message = new Message(topic, body.getBytes());
            message.setDelayTimeLevel(DELAY_LEVEL);
            return producer.send(message);
        }
        return producer.send(new Message(topic, number % 2 == 0 ? "even" : "odd", text(number)));
    }

    static void produce(String topic, String kind, int count) throws Exception {
        if (kind.equals("transaction")) {
            newer("transact", new Class<?>[] {String.class, int.class}, topic, count);
            return;
        }
        DefaultMQProducer producer = new DefaultMQProducer("producers");
        producer.setNamesrvAddr(names);
        producer.start();
        if (kind.equals("batch") || kind.equals("ask")) {
            String name = kind.equals("ask") ? "ask" : "sendBatches";
            newer(name, new Class<?>[] {DefaultMQProducer.class, String.class, int.class}, producer, topic, count);
        } else {
            for (int number = 0; number < count; number++) {
                int each = number;
                retried(() -> acknowledged(send(producer, topic, kind, each)));
                print("{\"sent\": %d}", number);
            }
        }
        producer.shutdown();
    }

    /** Call a method of `Newer`, which is not compiled for clients of RocketMQ 3. */
    static void newer(String name, Class<?>[] types, Object... values) throws Exception {
        Class.forName("Newer").getDeclaredMethod(name, types).invoke(null, values);
    }

    static void waitForEndOfInput() throws Exception {
        while (System.in.read() >= 0) { }
    }

    /**
     * Consume until the input ends: what ends as `fails` fails each time; group `fifo` in order, group `all` everything, group
     * `answers` answers requests.  A tag behind `sql:` is an SQL92 condition.
     */
    static void consume(String topic, String group, String tag, String fails) throws Exception {
        retried(() -> started(topic, group, tag, fails));
        waitForEndOfInput();
    }

    static DefaultMQPushConsumer started(String topic, String group, String tag, String fails) throws Exception {
        boolean isSql = tag.startsWith(SQL);
        DefaultMQPushConsumer found = consumer(group, topic, isSql ? "*" : tag);
        if (isSql) {
            Class<?>[] types = {DefaultMQPushConsumer.class, String.class, String.class};
            newer("select", types, found, topic, tag.substring(SQL.length()));
        }
        // Broadcasting clients would share a file of offsets, and one that could not start keeps its name.
        found.setInstanceName(ProcessHandle.current().pid() + "-" + System.nanoTime());
        for (Method each : found.getClass().getMethods()) {  // clients of RocketMQ 3 have the group's setting
            if (each.getName().equals("setMaxReconsumeTimes")) each.invoke(found, 1);
        }
        if (group.equals("all")) found.setMessageModel(MessageModel.BROADCASTING);
        if (group.equals("answers")) {
            newer("answer", new Class<?>[] {DefaultMQPushConsumer.class}, found);
        } else if (group.equals("fifo")) {
            found.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(Scenarios::show);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            found.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(Scenarios::show);
                context.setDelayLevelWhenNextConsume(1);
                boolean isFailed = new String(messages.get(0).getBody()).endsWith(fails);
                return isFailed ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        found.start();
        return found;
    }

    static void show(MessageExt one) {
        double nowS = System.currentTimeMillis() / 1000.0;
        print("{\"body\": \"%s\", \"group\": \"%s\", \"now_s\": %.3f}", new String(one.getBody()), one.getTags(), nowS);
    }

    public static void main(String[] arguments) throws Exception {
        names = arguments[1];
        if (arguments[0].equals("produce")) {
            produce(arguments[2], arguments[3], Integer.parseInt(arguments[4]));
        } else {
            consume(arguments[2], arguments[3], arguments[4], arguments[5]);
        }
        System.exit(0);
    }
}
