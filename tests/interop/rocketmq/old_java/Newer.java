import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** What clients of RocketMQ 3 cannot do, for `Scenarios`: batches, transactions with checks, SQL92 filters, and replies. */
public class Newer extends Scenarios {
    static final int PART = 50, REPLY_MS = 5000;

    static void sendBatches(DefaultMQProducer producer, String topic, int count) throws Exception {
        for (int first = 0; first < count; first += PART) {
            List<Message> part = new ArrayList<>();
            for (int number = first; number < Math.min(count, first + PART); number++) {
                part.add(new Message(topic, text(number)));
            }
            retried(() -> acknowledged(producer.send(part)));
            for (int number = first; number < first + part.size(); number++) print("{\"sent\": %d}", number);
        }
    }

    static void select(DefaultMQPushConsumer consumer, String topic, String condition) throws Exception {
        consumer.subscribe(topic, MessageSelector.bySql(condition));
    }

    /** Send requests one after the other, each until its reply is there; 5.3.3 ends a wait when the request is sent. */
    static void ask(DefaultMQProducer producer, String topic, int count) throws Exception {
        for (int number = 0; number < count; number++) {
            Message request = new Message(topic, text(number));
            String reply = retried(() -> {
                CompletableFuture<Message> answer = new CompletableFuture<>();
                producer.request(request, new RequestCallback() {
                    @Override public void onSuccess(Message found) { if (found != null) answer.complete(found); }
                    @Override public void onException(Throwable error) { answer.completeExceptionally(error); }
                }, REPLY_MS);
                return new String(answer.get(2 * REPLY_MS, TimeUnit.MILLISECONDS).getBody());
            });
            if (!reply.equals("re: " + number)) throw new IllegalStateException(number + " is answered with " + reply);
            print("{\"sent\": %d}", number);
        }
    }

    /** Let a consumer answer requests; one whose reply fails comes again. */
    static void answer(DefaultMQPushConsumer consumer) throws Exception {
        DefaultMQProducer answering = new DefaultMQProducer("answering");
        answering.setNamesrvAddr(names);
        answering.start();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            try {
                for (MessageExt one : messages) {
                    show(one);
                    answering.send(MessageUtil.createReplyMessage(one, ("re: " + new String(one.getBody())).getBytes()));
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            } catch (Exception error) {  // the server may be gone, or the client waits no longer
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
        });
    }

    /** Commit two of four messages, roll one back, and leave one to the check, as those whose decision is lost. */
    static void transact(String topic, int count) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("deciders");
        producer.setNamesrvAddr(names);
        producer.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object number) {
                int rest = (int) number % 4;
                return rest == 1 ? LocalTransactionState.ROLLBACK_MESSAGE
                    : rest == 3 ? LocalTransactionState.UNKNOW : LocalTransactionState.COMMIT_MESSAGE;
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String body = new String(message.getBody());
                print("{\"checked\": \"%s\"}", body);
                return body.endsWith("R") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        for (int number = 0; number < count; number++) {
            int each = number;
            Message message = new Message(topic, (number + (number % 4 == 1 ? "R" : "")).getBytes());
            retried(() -> acknowledged(producer.sendMessageInTransaction(message, each)));
            print("{\"sent\": %d}", number);
        }
        waitForEndOfInput();  // the server asks as long as the test waits
        producer.shutdown();
    }
}
