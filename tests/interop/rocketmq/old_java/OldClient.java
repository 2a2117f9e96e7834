import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** What clients of RocketMQ 4 do, against one server: each scenario prints a line with what arrived. */
public class OldClient extends Common {
    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = begin(arguments);
        List<Message> batch = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            Message message = new Message("old", number % 2 == 0 ? "even" : "odd", text(number));
            if (number % 3 == 0) {
                producer.send(message);
            } else if (number % 3 == 1) {
                producer.sendOneway(message);
            } else {
                batch.add(message);
            }
            producer.send(new Message("old-order", text(number)), (queues, one, key) -> queues.get((int) key % 2), number);
        }
        producer.send(batch);
        print("push", push("old", "push", "*", false, 0));
        print("tag", push("old", "tag", "even", false, 0));
        print("order", push("old-order", "order", "*", true, 0));
        print("pull", pull());
        transact();
        print("transaction", push("old-sums", "sums", "*", false, 0));
        System.out.println("reply " + request(producer));
        producer.shutdown();
        System.exit(0);
    }

    static List<String> pull() throws Exception {
        DefaultLitePullConsumer found = new DefaultLitePullConsumer("pull");
        found.setNamesrvAddr(names);
        found.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        found.subscribe("old", "*");
        found.start();
        List<String> bodies = new ArrayList<>();
        for (int idle = 0; bodies.size() < count && idle < 60; ) {
            List<MessageExt> messages = found.poll(1000);
            idle = messages.isEmpty() ? idle + 1 : 0;
            messages.forEach(one -> bodies.add(new String(one.getBody())));
        }
        found.shutdown();
        return bodies;
    }

    /** Commit a third at once, roll a third back, and commit a third when the server asks. */
    static void transact() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("deciders");
        producer.setNamesrvAddr(names);
        producer.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object number) {
                int rest = (int) number % 3;
                return rest == 0 ? LocalTransactionState.COMMIT_MESSAGE
                    : rest == 1 ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        for (int number = 0; number < count; number++) {
            producer.sendMessageInTransaction(new Message("old-sums", text(number)), number);
        }
        Thread.sleep(70_000);
        producer.shutdown();
    }

    static String request(DefaultMQProducer producer) throws Exception {
        DefaultMQProducer answering = new DefaultMQProducer("answering");
        answering.setNamesrvAddr(names);
        answering.start();
        producer.send(new Message("old-questions", "first".getBytes()));  // creates the topic
        DefaultMQPushConsumer found = consumer("answerers", "old-questions", "ask");
        found.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt one : messages) {
                try {
                    answering.send(MessageUtil.createReplyMessage(one, ("re: " + new String(one.getBody())).getBytes()));
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        found.start();
        Thread.sleep(3000);
        Message reply = producer.request(new Message("old-questions", "ask", "hello".getBytes()), 60_000);
        found.shutdown();
        answering.shutdown();
        return new String(reply.getBody());
    }
}
