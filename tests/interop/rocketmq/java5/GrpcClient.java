import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Predicate;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Programs with the official Java client of RocketMQ 5: GrpcClient SCENARIO ADDRESS [ARGUMENT ...].  They print JSON lines. */
public final class GrpcClient {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final AtomicLong last = new AtomicLong();  // when a push consumer got something
    private static final Duration INVISIBLE = Duration.ofSeconds(10);  // the least that a proxy allows
    private static ClientConfiguration configuration;

    private static String text(MessageView view) {
        ByteBuffer body = view.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static synchronized void print(String format, Object... values) { System.out.printf(format + "%n", values); }

    private static void show(MessageView view) {
        print("{\"body\": \"%s\", \"group\": \"%s\", \"attempt\": %d, \"tag\": \"%s\", \"colour\": \"%s\", \"now_s\": %.3f}",
            text(view), view.getMessageGroup().orElse(""), view.getDeliveryAttempt(), view.getTag().orElse(""),
            view.getProperties().getOrDefault("colour", ""), System.currentTimeMillis() / 1000.0);
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static Producer producer(String topic) throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic)
            .setTransactionChecker(view -> {
                print("{\"checked\": \"%s\"}", text(view));
                return text(view).endsWith("R") ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
            }).build();
    }

    private static SimpleConsumer simple(String topic, String group) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(2))
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build();
    }

    private static void send(String topic, int count) throws Exception {
        try (Producer producer = producer(topic)) {
            for (int number = 0; number < count; number++) {
                producer.send(message(topic, "" + number).setTag("t").setKeys("k" + number).addProperty("colour", "grün").build());
            }
        }
    }

    private static void fifo(String topic, String groups, int count) throws Exception {
        try (Producer producer = producer(topic)) {
            for (int number = 0; number < count; number++) {
                for (String group : groups.split(",")) {
                    producer.send(message(topic, group + "-" + number).setMessageGroup(group).build());
                }
            }
        }
    }

    private static void receive(String topic, String group) throws Exception {
        try (SimpleConsumer consumer = simple(topic, group)) {
            for (int idle = 0; idle < 3;) {
                List<MessageView> found = consumer.receive(32, Duration.ofSeconds(30));
                idle = found.isEmpty() ? idle + 1 : 0;
                for (MessageView view : found) {
                    consumer.ack(view);
                    show(view);
                }
            }
        }
    }

    /** Start a push consumer; the bodies for which `fails` is true fail each time. */
    private static PushConsumer consumer(String topic, String group, String tag, Predicate<String> fails) throws Exception {
        return retried(() -> PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(group).setSubscriptionExpressions(Collections.singletonMap(topic, new FilterExpression(tag)))
            .setMessageListener(view -> {
                last.set(System.currentTimeMillis());
                show(view);
                return fails.test(text(view)) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build());
    }

    /** Consume until nothing comes for a while; what `fails` names fails each time. */
    private static void push(String topic, String group, long idleMs, String fails) throws Exception {
        PushConsumer consumer = consumer(topic, group, "*", fails::equals);
        last.set(System.currentTimeMillis());
        while (System.currentTimeMillis() - last.get() < idleMs) {
            Thread.sleep(50);
        }
        consumer.close();
    }

    private static void waitForEndOfInput() throws Exception {
        while (System.in.read() >= 0) { }
    }

    /** Consume until the input ends; what ends as `fails` fails each time. */
    private static void consume(String topic, String group, String tag, String fails) throws Exception {
        consumer(topic, group, tag, body -> body.endsWith(fails));
        waitForEndOfInput();
    }

    /** Receive with a simple consumer until the input ends, and show what is acknowledged; what failed comes again. */
    private static void consumeSimple(String topic, String group) throws Exception {
        SimpleConsumer consumer = retried(() -> simple(topic, group));
        Thread end = new Thread(() -> {
            try {
                waitForEndOfInput();
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        end.setDaemon(true);
        end.start();
        while (end.isAlive()) {
            for (MessageView view : retried(() -> consumer.receive(32, INVISIBLE))) {
                try {
                    consumer.ack(view);
                    show(view);
                } catch (Exception error) {
                    print("{\"failed\": \"acknowledgement\"}");
                }
            }
        }
    }

    private static void transact(String topic, long waitMs) throws Exception {
        try (Producer producer = producer(topic)) {
            for (String body : new String[] {"commit", "rollback", "checked"}) {
                Transaction transaction = producer.beginTransaction();
                producer.send(message(topic, body).build(), transaction);
                if (body.equals("commit")) {
                    transaction.commit();
                } else if (body.equals("rollback")) {
                    transaction.rollback();
                }
            }
            Thread.sleep(waitMs);
        }
    }

    /** Return what a call returns in the end, while a server is killed and started again. */
    private static <T> T retried(Callable<T> call) throws InterruptedException {
        while (true) {
            try {
                return call.call();
            } catch (Exception error) {
                Thread.sleep(200);
            }
        }
    }

    /**
     * Send numbers, each until it is acknowledged; `R` behind a number is rolled back.
     *
     * The producer is not closed: after kills that may not end.
     */
    private static void produce(String topic, String kind, int count) throws Exception {
        Producer producer = producer(topic);
        for (int number = 0; number < count; number++) {
            MessageBuilder message = message(topic, "" + number);
            if (kind.equals("transaction")) {
                transactOne(producer, topic, number);
            } else {
                if (kind.equals("fifo")) {
                    message.setMessageGroup("group-" + number % 5);
                } else if (kind.equals("delay")) {
                    long due = System.currentTimeMillis() + 3000;
                    message = message(topic, number + " " + due / 1000).setDeliveryTimestamp(due);
                } else {
                    message.setTag(number % 2 == 0 ? "even" : "odd");
                }
                Message built = message.build();
                retried(() -> producer.send(built));
            }
            print("{\"sent\": %d}", number);
        }
        if (kind.equals("transaction")) waitForEndOfInput();  // the server asks as long as the test waits
    }

    /** Commit two of four messages, roll one back, and leave one to the checker, as those whose decision is lost. */
    private static void transactOne(Producer producer, String topic, int number) throws InterruptedException {
        Transaction transaction = retried(() -> {
            Transaction begun = producer.beginTransaction();
            producer.send(message(topic, number + (number % 4 == 1 ? "R" : "")).build(), begun);
            return begun;
        });
        try {
            if (number % 4 == 1) {
                transaction.rollback();
            } else if (number % 4 != 3) {
                transaction.commit();
            }
        } catch (Exception error) {
            print("{\"failed\": \"decision\"}");
        }
    }

    private static void delay(String topic, String group, long seconds) throws Exception {
        long due = System.currentTimeMillis() + seconds * 1000;
        try (Producer producer = producer(topic); SimpleConsumer consumer = simple(topic, group)) {
            producer.send(message(topic, "later").setDeliveryTimestamp(due).build());
            List<MessageView> found = Collections.emptyList();
            while (found.isEmpty()) {
                found = consumer.receive(32, Duration.ofSeconds(30));
            }
            System.out.printf("{\"body\": \"%s\", \"late_s\": %f}%n", text(found.get(0)), (System.currentTimeMillis() - due) / 1000.0);
            consumer.ack(found.get(0));
        }
    }

    public static void main(String[] arguments) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[1]).enableSsl(false).build();
        String topic = arguments[2];
        switch (arguments[0]) {
            case "send": send(topic, Integer.parseInt(arguments[3])); break;
            case "fifo": fifo(topic, arguments[3], Integer.parseInt(arguments[4])); break;
            case "receive": receive(topic, arguments[3]); break;
            case "push": push(topic, arguments[3], Long.parseLong(arguments[4]), arguments[5]); break;
            case "produce": produce(topic, arguments[3], Integer.parseInt(arguments[4])); break;
            case "consume": consume(topic, arguments[3], arguments[4], arguments[5]); break;
            case "consume_simple": consumeSimple(topic, arguments[3]); break;
            case "transact": transact(topic, Long.parseLong(arguments[3])); break;
            case "delay": delay(topic, arguments[3], Long.parseLong(arguments[4])); break;
            default: throw new IllegalArgumentException(arguments[0]);
        }
        System.exit(0);
    }
}
