"""Every command of RocketMQ's `mqadmin`, unchanged, against a store of ours: it works, or a line tells why not."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from .jvm import SMALL_JVM, prepare
from .live import MARKS, Served, processed
from .real_broker import CLUSTER, NAME, until
from .test_served_clients import sent

pytestmark = MARKS
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "mqadmin.md"
MAIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
MESSAGES = 20
PATIENCE_S = 90
ENDLESS = {"clusterRT": 20, "startMonitoring": 10}  # seconds after which a command is stopped that goes on until then
TOGETHER = 4  # each command waits three seconds before it ends


class Expected(NamedTuple):
    """Arguments of a command, and a pattern that its output has."""

    arguments: str
    pattern: str
    is_refused: bool = False


def refused(arguments: str, reason: str) -> Expected:
    return Expected(arguments, f"CODE: 3  DESC: {reason}", is_refused=True)


AUTH = "access is by one key and secret"
COLD = "the store does not limit the reading of old messages"
KV = "this name server keeps no settings"
ONE = "this is one broker, without a controller"
ROUTES = "this name server has one broker"
USER = "-b {broker} -s User:u"
COMMANDS = {
    "addBroker": refused("-c {broker} -b {scratch}/b.conf", ONE),
    "addWritePerm": refused("-b {name}", ROUTES),
    "allocateMQ": Expected("-t orders -i 10.0.0.1,10.0.0.2", r'"10.0.0.2":\[\{"brokerName":"{name}","queueId":1,"topic"'),
    "brokerConsumeStats": Expected("-b {broker}", r"orders +gone +{name} +1 +10 +10 +0"),
    "brokerStatus": Expected("-b {broker}", r"brokerVersionDesc +: V5_3_3(?s:.*)putTps +: \d"),
    "checkMsgSendRT": Expected("-t spare -a 3 -s 10", r"{name} +1 +true"),
    "checkRocksdbCqWriteProgress": refused("-c {cluster} -t orders", "the store is no RocksDB"),
    "cleanBrokerMetadata": refused("-a {names} -bn {name} -c {cluster} -b 0", ONE),
    "cleanExpiredCQ": Expected("-b {broker}", "success"),
    "cleanUnusedTopic": refused("-b {broker}", "queues are deleted with their topic"),
    "cloneGroupOffset": Expected("-s gone -d cloned -t orders", "clone group offset success"),
    "clusterList": Expected("", r"{cluster} +{name} +0 +{broker} +V5_3_3 .* true"),
    "clusterRT": Expected("-a 2 -s 10 -c {cluster} -i 1 -p false", r"{cluster} +{name} +\S+ +2 +0"),
    "consumeMessage": Expected("-t orders -g look -c 3", "MSGID: .*queueOffset=0"),
    "consumerConnection": Expected("-g readers", r"{client} +127.0.0.1:\d+ +JAVA +V5_3_3(?s:.*)orders +\*"),
    "consumerProgress": Expected("-g gone", r"orders +{name} +1 +10 +10 +0"),
    "consumerStatus": Expected("-g readers", r"{client} +V5_3_3(?s:.*)Rebalance OK"),
    "copyAcl": refused("-f {broker} -t {broker} -s User:u", AUTH),
    "copyUser": refused("-f {broker} -t {broker} -u u", AUTH),
    "createAcl": refused(f"{USER} -r Topic:* -a Pub -d Allow", AUTH),
    "createUser": refused("-b {broker} -u u -p p", AUTH),
    "deleteAcl": refused(USER, AUTH),
    "deleteExpiredCommitLog": Expected("-b {broker}", "success"),
    "deleteKvConfig": Expected("-s n -k a", "delete kv config from namespace success"),
    "deleteSubGroup": Expected("-c {cluster} -g former -r true", r"delete subscription group \[former\] .* success"),
    "deleteTopic": Expected("-c {cluster} -t former", r"delete topic \[former\] from cluster \[{cluster}\] success"),
    "deleteUser": refused("-b {broker} -u u", AUTH),
    "dumpCompactionLog": Expected("-f {scratch}/no-file", "not exist"),  # of a file here, not of a broker
    "electMaster": refused("-a {names} -b 0 -bn {name} -c {cluster}", ONE),
    "exportConfigs": Expected("-c {cluster} -f {scratch}", "configs.json success"),
    "exportMetadata": Expected("-c {cluster} -f {scratch}", "metadata.json success"),
    "exportMetadataInRocksDB": Expected("-p {scratch}/no-db -t topics", "RocksDB path is invalid"),  # as above
    "exportMetrics": Expected("-c {cluster} -f {scratch}", "metrics.json success"),
    "exportPopRecord": refused("-b {broker}", "messages in POP mode are not kept in the store"),
    "getAcl": refused(USER, AUTH),
    "getBrokerConfig": Expected("-b {broker}", r"brokerName +=  {name}"),
    "getBrokerEpoch": refused("-c {cluster}", ONE),
    "getColdDataFlowCtrInfo": refused("-b {broker}", COLD),
    "getConsumerConfig": Expected("-g readers", r"groupName +=  readers(?s:.*)retryMaxTimes +=  16"),
    "getControllerConfig": refused("-a {names}", ONE),
    "getControllerMetaData": refused("-a {names}", ONE),
    "getNamesrvConfig": refused("", KV),
    "getSyncStateSet": refused("-a {names} -c {cluster}", ONE),
    "getUser": refused("-b {broker} -u u", AUTH),
    "haStatus": Expected("-b {broker}", r"#SlaveNum\s+0\s+#InSyncSlaveNum\s+0"),
    "listAcl": refused("-b {broker}", AUTH),
    "listUser": refused("-b {broker}", AUTH),
    "printMsg": Expected("-t orders", r"MSGID: {unique} (?s:.*)queueId=1, storeSize=\d+, queueOffset=9"),
    "printMsgByQueue": Expected("-t orders -a {name} -i 0 -p true", "MSGID: {unique} "),
    "producer": Expected("-b {broker}", r"producer group \({cluster}-producer\) instance : clientId=.*language=JAVA"),
    "producerConnection": Expected("-g {cluster}-producer -t orders", r"127.0.0.1:\d+ +JAVA +V5_3_3"),
    "queryCq": Expected("-t orders -q 0 -i 2 -c 2 -g readers", r"max: 10, min: 0(?s:.*)idx: 3\n.*physicSize=\d\d"),
    "queryMsgById": Expected("-i {id} -t orders", r"Queue Offset: +0(?s:.*)Message Body Path"),
    "queryMsgByKey": Expected("-t orders -k orders-3", r"[0-9A-F]+ +1 +1$"),
    "queryMsgByOffset": Expected("-t orders -b {name} -i 0 -o 3", r"Keys: +\[orders-6\]"),
    "queryMsgByUniqueKey": Expected("-t orders -i {unique} -g readers -d {client}", "consumeResult=CR_SUCCESS"),
    "queryMsgTraceById": Expected("-i {unique}", "DESC: query message by key finished, but no message"),
    "remappingStaticTopic": Expected("-t orders -c {cluster}", "Mapping info should not be null", is_refused=True),
    "removeBroker": refused("-c {broker} -b {cluster}:{name}:1", ONE),
    "removeColdDataFlowCtrGroupConfig": refused("-b {broker} -g readers", COLD),
    "resetMasterFlushOffset": refused("-b {broker} -o 0", "this broker is a master"),
    "resetOffsetByTime": Expected("-g reset -t moved -s 0", r"{name} +1 +0"),
    "rocksDBConfigToJson": Expected("-p {scratch} -t topics", "Invalid args", is_refused=True),
    "sendMessage": Expected("-t spare -p hello -k kk -c tt", r"{name} +\d +SEND_OK"),
    "sendMsgStatus": Expected("-b {name} -c 2", r"rt=\d+ms, SendResult=SendResult \[sendStatus=SEND_OK"),
    "setCommitLogReadAheadMode": refused("-b {broker} -m 1", "the store decides how it reads its files"),
    "setConsumeMode": Expected("-b {broker} -t moved -g modes -m POP -q 1", r"consume mode\[POP\] popShareQueueNum\[1\]"),
    "skipAccumulatedMessage": Expected("-g skipped -t moved", r"{name} +1 +10"),
    "startMonitoring": Expected("", "no route info of topic OFFSET_MOVED_EVENT"),
    "statsAll": Expected("-t orders", r"orders +gone +0 +\d\.\d\d +0\.00"),
    "topicClusterList": Expected("-t orders", "^{cluster}$"),
    "topicList": Expected("-c", r"{cluster} +orders +readers"),
    "topicRoute": Expected("-t orders", r'"brokerName":"{name}",\s+"perm":6,\s+"readQueueNums":2'),
    "topicStatus": Expected("-t orders", r"{name} +1 +0 +10 +2\d\d\d-"),
    "updateAcl": refused(f"{USER} -r Topic:* -a Pub -d Allow", AUTH),
    "updateBrokerConfig": refused("-b {broker} -k maxMessageSize -v 1000", "settings are given when the store is opened"),
    "updateColdDataFlowCtrGroupConfig": refused("-b {broker} -g readers -v 10", COLD),
    "updateControllerConfig": refused("-a {names} -k a -v b", ONE),
    "updateKvConfig": refused("-s n -k a -v b", KV),
    "updateNamesrvConfig": refused("-k a -v b", KV),
    "updateOrderConf": Expected("-t orders -v {name}:2 -m put", r"update orderConf success. topic=\[orders\]"),
    "updateStaticTopic": refused("-t static -qn 2 -c {cluster}", "static topics need several brokers"),
    "updateSubGroup": Expected("-c {cluster} -g made -r 3", "create subscription group to {broker} success"),
    "updateSubGroupList": Expected("-b {broker} -f {scratch}/groups.json", "to {broker} success"),
    "updateTopic": Expected("-b {broker} -t made -r 3 -w 3 -o true -a +message.type=FIFO", "create topic to {broker} success"),
    "updateTopicList": Expected("-b {broker} -f {scratch}/topics.json", "to {broker} success"),
    "updateTopicPerm": Expected("-b {broker} -t spare2 -p 4", "update topic perm from 6 to 4 in {broker} success"),
    "updateUser": refused("-b {broker} -u u -p p", AUTH),
    "wipeWritePerm": refused("-b {name}", ROUTES),
}  # fmt: skip


class Tool(NamedTuple):
    """`mqadmin`, and a server for it with three groups: one is connected, two are not."""

    served: Served
    names: dict[str, str]

    def run(self, command: str = "", arguments: str = "") -> str:
        """Return the output of a command; of one that does not end, what it has printed until it is killed."""
        scratch = Path(self.names["scratch"])
        logback = prepare().split(":")[0] + "/logback.xml"
        line = ["java", "-Xmx256m", *SMALL_JVM, f"-Drmq.logback.configurationFile={logback}", f"-Duser.home={scratch}"]
        line += [f"-Drocketmq.home.dir={scratch}", f"-Djava.io.tmpdir={scratch}", "-cp", prepare(), MAIN]
        line += [command, *arguments.split(), "-n", self.names["names"]] if command else []
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=scratch) as process:
            try:
                return process.communicate(timeout=ENDLESS.get(command, PATIENCE_S))[0]
            except subprocess.TimeoutExpired:
                process.kill()
                assert command in ENDLESS, f"{command} does not end"
                return process.communicate()[0]


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    """Start a server with messages, a consumer, and offsets of groups that are not connected."""
    scratch = tmp_path_factory.mktemp("mqadmin")
    with Served(scratch) as served:
        for topic in ("orders", "moved", "spare", "spare2", "former"):
            served.invoke("topic", topic=topic, queues=2)
        for topic in ("orders", "moved"):
            served.invoke("send", messages=[sent(topic, number) for number in range(MESSAGES)])
        for queue_id in (0, 1):
            for topic, group in (("orders", "gone"), ("moved", "reset"), ("moved", "skipped"), ("spare", "former")):
                served.store.engine.consumer_offsets().commit(topic, group, queue_id, 10 if group in ("gone", "reset") else 0)
        for group in ("gone", "former"):
            served.store.engine.retries.group(group)
        (scratch / "topics.json").write_text('[{"topicName":"listed","readQueueNums":3,"writeQueueNums":3,"perm":6}]')
        (scratch / "groups.json").write_text('[{"groupName":"listed"}]')
        served.invoke("start_consumer", name="c", group="readers", topic="orders", file=str(scratch / "file"))
        until(lambda: processed(scratch / "file") == MESSAGES, "everything is consumed")
        first = served.store.get("orders", 0, 0).messages[0]
        names = {
            "names": f"127.0.0.1:{served.server.names_port}", "broker": served.server.address, "name": NAME,
            "cluster": CLUSTER, "scratch": str(scratch), "id": first.message_id,
            "unique": first.all_properties["UNIQ_KEY"], "client": served.members("readers")[0],
        }  # fmt: skip
        yield Tool(served, names)


def filled(text: str, names: dict[str, str]) -> str:
    """Return a text with the names; braces with anything else in them stay."""
    return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], found[0]), text)


@pytest.fixture(scope="module")
def outputs(tool: Tool) -> dict[str, str]:
    """Run all commands, some at a time: each waits for three seconds before it ends."""
    with ThreadPoolExecutor(TOGETHER) as pool:
        found = pool.map(lambda one: tool.run(one, filled(COMMANDS[one].arguments, tool.names)), COMMANDS)
        return dict(zip(COMMANDS, found, strict=True))


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_works_or_is_refused_with_a_reason(tool: Tool, outputs: dict[str, str], command: str) -> None:
    """The output has what the store has, or the reason in one line."""
    expected, output = COMMANDS[command], outputs[command]
    escaped = {name: re.escape(value) for name, value in tool.names.items()}
    assert re.search(filled(expected.pattern, escaped), output, re.M), output[-3000:]
    assert "NullPointerException" not in output
    assert "JSONException" not in output
    if not expected.is_refused:
        assert "CODE: 3 " not in output


def test_commands_changed_the_store(tool: Tool, outputs: dict[str, str]) -> None:
    """Topics, groups and offsets are those that were asked for."""
    assert outputs
    store, topics = tool.served.store, tool.served.store.engine.topics
    made, listed, spare = topics.get("made"), topics.get("listed"), topics.get("spare2")
    assert made is not None
    assert listed is not None
    assert spare is not None
    assert (made.write_queues, made.is_ordered, made.attributes) == (3, True, {"message.type": "FIFO"})
    assert (listed.write_queues, spare.perm, topics.get("former")) == (3, 4, None)
    assert {"made", "listed"} <= set(store.engine.retries.groups.names())
    assert "former" not in store.engine.retries.groups
    expected = {("orders", "cloned"): 10, ("moved", "reset"): 0, ("moved", "skipped"): 10, ("spare", "former"): None}
    for (topic, group), offset in expected.items():
        assert store.committed_offsets(topic, group) == ({} if offset is None else {0: offset, 1: offset}), group


def test_a_reset_reaches_consumers_that_are_connected(tool: Tool, outputs: dict[str, str]) -> None:
    """They process everything once more."""
    assert outputs
    file = Path(tool.names["scratch"], "file")
    before = processed(file)
    tool.run("resetOffsetByTime", "-g readers -t orders -s 0")
    until(lambda: processed(file) == before + MESSAGES, "everything is consumed once more")


def test_the_list_is_that_of_the_tool_and_of_the_page(tool: Tool) -> None:
    """Commands that RocketMQ adds or removes are found, and the page has the same ones with the same answer."""
    listed = re.findall(r"^   (\w+) ", tool.run(), re.M)
    assert sorted(listed) == sorted(COMMANDS)
    rows = dict(re.findall(r"^\| `(\w+)` \| (works|refused|local)", PAGE.read_text(), re.M))
    local = {"dumpCompactionLog", "exportMetadataInRocksDB", "rocksDBConfigToJson"}
    answers = {name: "refused" if expected.is_refused else "works" for name, expected in COMMANDS.items()}
    assert rows == answers | dict.fromkeys(local, "local")
