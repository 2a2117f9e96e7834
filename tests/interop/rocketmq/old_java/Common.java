import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** What the clients of RocketMQ 3 and 4 do in the same way; the test writes the older one's package into the imports. */
class Common {
    static String names;
    static int count;

    static DefaultMQProducer begin(String[] arguments) throws Exception {
        names = arguments[0];
        count = Integer.parseInt(arguments[1]);
        DefaultMQProducer producer = new DefaultMQProducer("producers");
        producer.setNamesrvAddr(names);
        producer.start();
        return producer;
    }

    static byte[] text(int number) { return Integer.toString(number).getBytes(); }

    static void print(String name, List<String> bodies) { System.out.println(name + " " + String.join(",", bodies)); }

    static DefaultMQPushConsumer consumer(String group, String topic, String tags) throws Exception {
        DefaultMQPushConsumer found = new DefaultMQPushConsumer(group);
        found.setNamesrvAddr(names);
        found.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        found.subscribe(topic, tags);
        return found;
    }

    /** Consume until nothing has come for some seconds; the first `failures` tries of each message fail, and are not listed. */
    static List<String> push(String topic, String group, String tags, boolean isOrderly, int failures) throws Exception {
        List<String> bodies = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer found = consumer(group, topic, tags);
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
}
