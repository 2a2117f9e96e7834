import com.alibaba.rocketmq.client.consumer.DefaultMQPullConsumer;
import com.alibaba.rocketmq.client.consumer.DefaultMQPushConsumer;
import com.alibaba.rocketmq.client.consumer.PullResult;
import com.alibaba.rocketmq.client.consumer.PullStatus;
import com.alibaba.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import com.alibaba.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import com.alibaba.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import com.alibaba.rocketmq.client.consumer.listener.MessageListenerOrderly;
import com.alibaba.rocketmq.client.producer.DefaultMQProducer;
import com.alibaba.rocketmq.client.producer.SendResult;
import com.alibaba.rocketmq.client.producer.SendStatus;
import com.alibaba.rocketmq.common.consumer.ConsumeFromWhere;
import com.alibaba.rocketmq.common.message.Message;
import com.alibaba.rocketmq.common.message.MessageExt;
import com.alibaba.rocketmq.common.message.MessageQueue;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** What clients of RocketMQ 3 do, against one server: each scenario prints a line with what arrived. */
public class OldestClient {
    static String names;
    static int count;

    public static void main(String[] arguments) throws Exception {
        names = arguments[0];
        count = Integer.parseInt(arguments[1]);
        DefaultMQProducer producer = new DefaultMQProducer("producers");
        producer.setNamesrvAddr(names);
        producer.start();
        for (int number = 0; number < count; number++) {
            byte[] body = Integer.toString(number).getBytes();
            Message message = new Message("oldest", number % 2 == 0 ? "even" : "odd", "key-" + number, body);
            if (number % 3 == 1) {
                producer.sendOneway(message);
            } else {
                check(producer.send(message));
            }
            Message ordered = new Message("oldest-order", "", body);
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

    static void print(String name, List<String> bodies) { System.out.println(name + " " + String.join(",", bodies)); }

    /** Consume until nothing has come for some seconds; the first `failures` tries of each message fail, and are not listed. */
    static List<String> push(String topic, String group, String tags, boolean isOrderly, int failures) throws Exception {
        List<String> bodies = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer found = new DefaultMQPushConsumer(group);
        found.setNamesrvAddr(names);
        found.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        found.subscribe(topic, tags);
        if (isOrderly) {
            found.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(one -> bodies.add(one.getQueueId() + ":" + new String(one.getBody())));
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            found.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                if (messages.get(0).getReconsumeTimes() < failures) {
                    context.setDelayLevelWhenNextConsume(1);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                messages.forEach(one -> bodies.add(new String(one.getBody())));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        found.start();
        for (int seen = -1, idle = 0; idle < 12 || seen <= 0 && idle < 120; ) {
            Thread.sleep(500);
            idle = bodies.size() == seen ? idle + 1 : 0;
            seen = bodies.size();
        }
        found.shutdown();
        return bodies;
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
