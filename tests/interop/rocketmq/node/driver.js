// Programs with the unmodified official Node client, each a process of its own: `driver.js SCENARIO ADDRESS [ARGUMENT ...]`.
// Scenarios, arguments and the JSON lines that they print are those of `python_client_driver.py`.

"use strict";

const { setTimeout: sleep } = require("node:timers/promises");
const { ConsumeResult, Producer, PushConsumer, SimpleConsumer } = require("rocketmq-client-nodejs");
const { TransactionResolution } = require("rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb");

const IDLE_POLLS = 2;
const POLL_MS = 2000;
const INVISIBLE_MS = 10_000; // the least that a proxy allows
const PAUSE_MS = 200;

const show = (facts) => console.log(JSON.stringify(facts));
const failed = (error) => show({ failed: String(error).slice(0, 200) });
const tagOf = (number) => (number % 2 === 0 ? "even" : "odd");

/** Return what a call returns in the end, while a server is killed and started again. */
async function retried(call) {
  for (;;) {
    try {
      return await call();
    } catch (error) {
      failed(error);
      await sleep(PAUSE_MS);
    }
  }
}

/** Start a client of a class; one that could not start is dropped. */
async function started(Kind, options) {
  const client = new Kind(options);
  await client.startup();
  return client;
}

const producer = (base, topic, checker) => started(Producer, { ...base, topic, checker });

const simple = (base, topic, group, tag = "*") =>
  started(SimpleConsumer, { ...base, consumerGroup: group, awaitDuration: POLL_MS, subscriptions: new Map([[topic, tag]]) });

const message = (topic, body, fields = {}) => ({ topic, body: Buffer.from(String(body)), ...fields });

/** Send numbers one after the other, and print each that is acknowledged. */
async function send(base, topic, begin, end) {
  const one = await producer(base, topic);
  for (let number = Number(begin); number < Number(end); number++) {
    await retried(() => one.send(message(topic, number, { tag: tagOf(number) })));
    show({ sent: number });
  }
  await one.shutdown();
}

/** Receive and acknowledge until nothing comes for a while. */
async function receive(base, topic, group, tag = "*", invisibleS = "60") {
  const one = await simple(base, topic, group, tag);
  for (let idle = 0; idle < IDLE_POLLS; ) {
    const found = await retried(() => one.receive(32, Number(invisibleS) * 1000));
    idle = found.length ? 0 : idle + 1;
    await acknowledge(one, found);
  }
  await one.shutdown();
}

/** Acknowledge what was received, and show what that was; what failed comes again. */
async function acknowledge(one, found) {
  for (const each of found) {
    try {
      await one.ack(each);
      show({ body: each.body.toString(), attempt: each.deliveryAttempt });
    } catch (error) {
      failed(error);
    }
  }
}

/** Receive without an acknowledgement, and receive again. */
async function hold(base, topic, group, invisibleS) {
  const one = await simple(base, topic, group);
  let taken = 0;
  let found = [];
  for (let round = 0; round < 2; round++) {
    do found = await one.receive(32, Number(invisibleS) * 1000);
    while (!found.length);
    const now = performance.now();
    show({ attempts: found.map((each) => each.deliveryAttempt), after_s: taken ? (now - taken) / 1000 : 0 });
    taken = now;
  }
  const changed = await one.changeInvisibleDuration(found[0], 30_000);
  for (const each of found) await one.ack(each === found[0] && changed ? Object.assign(each, { receiptHandle: changed }) : each);
  await one.shutdown();
}

/** Start a push consumer; the bodies for which `fails` is true fail each time. */
function consumer(base, topic, group, tag, fails, heard = () => {}) {
  const consume = async (each) => {
    const body = each.body.toString();
    heard();
    show({ body, group: each.messageGroup, attempt: each.deliveryAttempt, now_s: Date.now() / 1000 });
    return fails(body) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
  };
  const subscriptions = new Map([[topic, tag]]);
  const options = { ...base, consumerGroup: group, subscriptions, messageListener: { consume } };
  return retried(() => started(PushConsumer, options));
}

/** Consume until nothing comes for a while; what `fails` names fails each time. */
async function push(base, topic, group, idleS, fails = "") {
  let last = performance.now();
  const one = await consumer(base, topic, group, "*", (body) => body === fails, () => (last = performance.now()));
  while (performance.now() - last < Number(idleS) * 1000) await sleep(50);
  await one.shutdown();
}

/** Consume until the input ends; what ends as `fails` fails each time. */
async function consume(base, topic, group, tag, fails) {
  const one = await consumer(base, topic, group, tag, (body) => body.endsWith(fails));
  for await (const _ of process.stdin);
  await one.shutdown();
}

/** Receive with a simple consumer until the input ends, and show what is acknowledged; what failed comes again. */
async function consumeSimple(base, topic, group, tag) {
  const one = await retried(() => simple(base, topic, group, tag));
  let isOver = false;
  process.stdin.resume().on("end", () => (isOver = true));
  while (!isOver) {
    await acknowledge(one, await retried(() => one.receive(32, INVISIBLE_MS)));
  }
  await one.shutdown();
}

/** Send messages of several groups in turn. */
async function fifo(base, topic, groups, count) {
  const one = await producer(base, topic);
  for (let number = 0; number < Number(count); number++) {
    for (const group of groups.split(",")) await one.send(message(topic, `${group}-${number}`, { messageGroup: group }));
  }
  await one.shutdown();
}

/** Print how long a delayed message took. */
async function delay(base, topic, group, seconds) {
  const consumer = await simple(base, topic, group);
  const one = await producer(base, topic);
  const due = Date.now() + Number(seconds) * 1000;
  await one.send(message(topic, "later", { deliveryTimestamp: new Date(due) }));
  let found = [];
  while (!found.length) found = await consumer.receive(32, 60_000);
  show({ body: found[0].body.toString(), late_s: (Date.now() - due) / 1000 });
  await consumer.ack(found[0]);
  await one.shutdown();
  await consumer.shutdown();
}

/** Commits what the server checks, except `rolled back`. */
const checker = {
  async check(each) {
    const body = each.body.toString();
    show({ checked: body });
    return body === "rolled back" || body.endsWith("R") ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
  },
};

/** Commit one message, roll one back, and leave two to the checker. */
async function transact(base, topic, waitS) {
  const one = await producer(base, topic, checker);
  for (const [body, decide] of [["commit", "commit"], ["rollback", "rollback"], ["checked"], ["rolled back"]]) {
    const transaction = one.beginTransaction();
    await one.send(message(topic, body), transaction);
    if (decide) await transaction[decide]();
  }
  await sleep(Number(waitS) * 1000);
  await one.shutdown();
}

/** Send numbers, each until it is acknowledged; `R` behind a number is rolled back. */
async function produce(base, topic, kind, count) {
  const one = await producer(base, topic, kind === "transaction" ? checker : undefined);
  for (let number = 0; number < Number(count); number++) {
    if (kind === "transaction") {
      await transactOne(one, topic, number);
    } else if (kind === "fifo") {
      await retried(() => one.send(message(topic, number, { messageGroup: `group-${number % 5}` })));
    } else if (kind === "delay") {
      const due = Date.now() + 3000;
      await retried(() => one.send(message(topic, `${number} ${due / 1000}`, { deliveryTimestamp: new Date(due) })));
    } else {
      await retried(() => one.send(message(topic, number, { tag: tagOf(number) })));
    }
    show({ sent: number });
  }
  if (kind === "transaction") for await (const _ of process.stdin); // the server asks as long as the test waits
  await one.shutdown();
}

/** Commit two of four messages, roll one back, and leave one to the checker, as those whose decision is lost. */
async function transactOne(one, topic, number) {
  const transaction = await retried(async () => {
    const begun = one.beginTransaction();
    await one.send(message(topic, `${number}${number % 4 === 1 ? "R" : ""}`), begun);
    return begun;
  });
  try {
    if (number % 4 !== 3) await (number % 4 === 1 ? transaction.rollback() : transaction.commit());
  } catch (error) {
    failed(error);
  }
}

/** Send a message with all fields and print what arrives. */
async function dump(base, topic) {
  const one = await producer(base, topic);
  const consumer = await simple(base, topic, "dump");
  const properties = new Map([["colour", "grün"]]);
  const receipt = await one.send(message(topic, "körper", { tag: "t", keys: ["key-1"], properties }));
  const [found] = await consumer.receive(32, 60_000);
  show({
    body: found.body.toString(), keys: found.keys, same_id: found.messageId === receipt.messageId, topic: found.topic,
    tag: found.tag, properties: Object.fromEntries(found.properties), delivery_attempt: found.deliveryAttempt,
    corrupted: Boolean(found.corrupted),
  });
  await consumer.ack(found);
  await one.shutdown();
  await consumer.shutdown();
}

const SCENARIOS = { send, receive, hold, push, consume, consume_simple: consumeSimple, fifo, delay, transact, produce, dump };

async function main(scenario, target, ...rest) {
  const [endpoints, key] = target.split("@").reverse();
  const base = { endpoints, namespace: "" };
  if (key) {
    const [accessKey, accessSecret] = key.split("/");
    base.sessionCredentials = { accessKey, accessSecret };
  }
  await SCENARIOS[scenario](base, ...rest);
}

main(...process.argv.slice(2)).then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
