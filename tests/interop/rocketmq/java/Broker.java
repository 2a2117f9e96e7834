import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;

/**
 * The real name server and the real broker in one JVM: Broker PORT CONF, with the name server's port and the broker's own
 * broker.conf, which may name another name server.  One line is printed when clients can find the broker.  SIGTERM stops it cleanly through the broker's own hook.
 */
public class Broker {
    private static final int LOOK_MS = 20;
    private static final long PATIENCE_MS = 90_000;

    public static void main(String[] arguments) throws Exception {
        Lines lines = new Lines();
        long began = System.currentTimeMillis();
        NamesrvController names = nameServer(Integer.parseInt(arguments[0]));
        BrokerController broker = BrokerStartup.createBrokerController(new String[] {"-c", arguments[1]});
        BrokerStartup.start(broker);
        boolean isElsewhere = !broker.getBrokerConfig().getNamesrvAddr().endsWith(":" + arguments[0]);
        if (isElsewhere) broker.registerBrokerAll(true, false, true);
        while (!isElsewhere && !isKnown(names)) {  // the broker registers by itself only after ten seconds
            if (System.currentTimeMillis() - began > PATIENCE_MS) throw new IllegalStateException("the name server knows no broker");
            if (!broker.getMessageStoreConfig().isEnableDLegerCommitLog()) broker.registerBrokerAll(true, false, true);
            Thread.sleep(LOOK_MS);
        }
        lines.say(JSONObject.of("started_ms", System.currentTimeMillis() - began));
        Thread.currentThread().join();
    }

    private static NamesrvController nameServer(int port) throws Exception {
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(port);
        try {
            NettyServerConfig.class.getMethod("setBindAddress", String.class).invoke(server, "127.0.0.1");
        } catch (NoSuchMethodException error) {
            // RocketMQ 4 has no such setting
        }
        NamesrvController names = new NamesrvController(new NamesrvConfig(), server);
        if (!names.initialize()) throw new IllegalStateException("the name server does not start");
        names.start();
        return names;
    }

    private static boolean isKnown(NamesrvController names) {
        return !names.getRouteInfoManager().getAllClusterInfo().getBrokerAddrTable().isEmpty();
    }
}
