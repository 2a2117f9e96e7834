import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** What clients of RocketMQ 3 cannot do, for `Scenarios`: batches, and transactions with checks. */
public class Newer extends Scenarios {
    static final int PART = 50;

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
