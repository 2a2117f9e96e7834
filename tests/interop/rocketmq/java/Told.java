import com.alibaba.fastjson2.JSONObject;
import java.net.InetSocketAddress;
import java.util.Base64;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;

/** A message with the names of answers.py. */
public class Told {
    static JSONObject message(MessageExt message) {
        JSONObject told = new JSONObject();
        told.put("physical_offset", message.getCommitLogOffset());
        told.put("size", message.getStoreSize());
        told.put("topic", message.getTopic());
        told.put("queue_id", message.getQueueId());
        told.put("queue_offset", message.getQueueOffset());
        told.put("flag", message.getFlag());
        told.put("sys_flag", message.getSysFlag());
        told.put("body_crc", message.getBodyCRC());
        told.put("born_timestamp_ms", message.getBornTimestamp());
        told.put("store_timestamp_ms", message.getStoreTimestamp());
        told.put("born_host", text((InetSocketAddress) message.getBornHost()));
        told.put("store_host", text((InetSocketAddress) message.getStoreHost()));
        told.put("reconsume_times", message.getReconsumeTimes());
        told.put("prepared_transaction_offset", message.getPreparedTransactionOffset());
        told.put("message_id", message instanceof MessageClientExt sent ? sent.getOffsetMsgId() : message.getMsgId());
        told.put("properties", message.getProperties() == null ? Map.of() : message.getProperties());
        told.put("body", message.getBody() == null ? "" : Base64.getEncoder().encodeToString(message.getBody()));
        return told;
    }

    private static String text(InetSocketAddress host) {
        return host.getAddress().getHostAddress() + "|" + host.getPort();
    }
}
