import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import java.util.ArrayList;
import java.util.List;

/** What clients of RocketMQ 3 do, against one server: each scenario prints a line with what arrived. */
public class OldestClient extends Common {
    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = begin(arguments);
        for (int number = 0; number < count; number++) {
            Message message = new Message("oldest", number % 2 == 0 ? "even" : "odd", "key-" + number, text(number));
            if (number % 3 == 1) {
                producer.sendOneway(message);
            } else {
                check(producer.send(message));
            }
            Message ordered = new Message("oldest-order", "", text(number));
            check(producer.send(ordered, (queues, one, key) -> queues.get((Integer) key % 2), number));
        }
        print("push", push("oldest", "push", "*", false, 0));
        print("tag", push("oldest", "tag", "even", false, 0));
        print("retry", push("oldest", "retry", "odd", false, 1));
        print("order", push("oldest-order", "order", "*", true, 0));
        print("pull", pull());
        print("query", query(producer));
        producer.shutdown();
        System.exit(0);
    }

    static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) throw new IllegalStateException(result.toString());
    }

    static List<String> pull() throws Exception {
        DefaultMQPullConsumer found = new DefaultMQPullConsumer("pull");
        found.setNamesrvAddr(names);
        found.start();
        List<String> bodies = new ArrayList<>();
        for (MessageQueue queue : found.fetchSubscribeMessageQueues("oldest")) {
            long offset = found.minOffset(queue);
            for (PullResult result; ; offset = result.getNextBeginOffset()) {
                result = found.pull(queue, "*", offset, 32);
                if (result.getPullStatus() != PullStatus.FOUND) break;
                for (MessageExt one : result.getMsgFoundList()) bodies.add(new String(one.getBody()));
            }
            if (offset != found.maxOffset(queue)) throw new IllegalStateException("the end is elsewhere");
        }
        found.shutdown();
        return bodies;
    }

    static List<String> query(DefaultMQProducer producer) throws Exception {
        List<String> bodies = new ArrayList<>();
        for (MessageExt one : producer.queryMessage("oldest", "key-3", 10, 0, Long.MAX_VALUE).getMessageList()) {
            bodies.add(new String(producer.viewMessage(one.getMsgId()).getBody()));
        }
        return bodies;
    }
}
