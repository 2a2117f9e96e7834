//! Programs with the unmodified official Rust client, each a process of its own: `driver SCENARIO ADDRESS [ARGUMENT ...]`.
//! Scenarios, arguments and the JSON lines that they print are those of `python_client_driver.py`.

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use std::time::{Duration, SystemTime};

const IDLE_POLLS: usize = 8; // a receive asks one queue
const POLL: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(200);

fn options(address: &str) -> ClientOption {
    let mut found = ClientOption::default();
    let (key, endpoints) = address.rsplit_once('@').unwrap_or(("", address));
    if let Some((key, secret)) = key.split_once('/') {
        found.set_access_key(key);
        found.set_secret_key(secret);
    }
    found.set_access_url(endpoints);
    found.set_enable_tls(false);
    found.set_long_polling_timeout(POLL);
    found
}

fn topics(topic: &str) -> ProducerOption {
    let mut found = ProducerOption::default();
    found.set_topics(vec![topic]);
    found
}

async fn producer(address: &str, topic: &str) -> Producer {
    let mut found = Producer::new(topics(topic), options(address)).unwrap();
    found.start().await.unwrap();
    found
}

async fn simple(address: &str, topic: &str, group: &str) -> SimpleConsumer {
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![topic]);
    option.set_consumer_group(group);
    let mut found = SimpleConsumer::new(option, options(address)).unwrap();
    found.start().await.unwrap();
    found
}

/// Send numbers one after the other, and print each that is acknowledged.
async fn send(address: &str, topic: &str, begin: usize, end: usize) {
    let one = producer(address, topic).await;
    for number in begin..end {
        loop {
            let tag = if number % 2 == 0 { "even" } else { "odd" };
            let message = MessageBuilder::builder().set_topic(topic).set_body(number.to_string().into_bytes()).set_tag(tag);
            if one.send(message.build().unwrap()).await.is_ok() {
                break;
            }
            println!(r#"{{"failed": "send"}}"#);
            tokio::time::sleep(PAUSE).await;
        }
        println!(r#"{{"sent": {number}}}"#);
    }
    one.shutdown().await.unwrap();
}

/// Receive and acknowledge until nothing comes for a while.
async fn receive(address: &str, topic: &str, group: &str, tag: &str, invisible_s: u64) {
    let (one, mut idle) = (simple(address, topic, group).await, 0);
    let (filter, invisible) = (FilterExpression::new(FilterType::Tag, tag), Duration::from_secs(invisible_s));
    while idle < IDLE_POLLS {
        let Ok(found) = one.receive_with(topic, &filter, 32, invisible).await else {
            println!(r#"{{"failed": "receive"}}"#);
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        idle = if found.is_empty() { idle + 1 } else { 0 };
        for each in found {
            if one.ack(&each).await.is_err() {
                println!(r#"{{"failed": "ack"}}"#);
                continue;
            }
            println!(r#"{{"body": "{}", "attempt": {}}}"#, String::from_utf8_lossy(each.body()), each.delivery_attempt());
        }
    }
    one.shutdown().await.unwrap();
}

/// Print how long a delayed message took.
async fn delay(address: &str, topic: &str, group: &str, seconds: i64) {
    let now_s = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let (one, consumer) = (producer(address, topic).await, simple(address, topic, group).await);
    let due_s = now_s() as i64 + seconds;
    one.send(MessageBuilder::delay_message_builder(topic, b"later".to_vec(), due_s).build().unwrap()).await.unwrap();
    let mut found = vec![];
    while found.is_empty() {
        found = consumer.receive(topic, &FilterExpression::new(FilterType::Tag, "*")).await.unwrap();
    }
    let (body, due_ms) = (String::from_utf8_lossy(found[0].body()), found[0].delivery_timestamp().unwrap_or(0));
    println!(r#"{{"body": "{body}", "late_s": {}, "due_ms": {due_ms}}}"#, now_s() - due_s as f64);
    consumer.ack(&found[0]).await.unwrap();
}

/// Commit one message, roll one back, and leave two to the checker.
async fn transact(address: &str, topic: &str, wait_s: u64) {
    let checker = Box::new(|_: String, message: rocketmq::model::message::MessageView| {
        let body = String::from_utf8_lossy(message.body()).into_owned();
        println!(r#"{{"checked": "{body}"}}"#);
        if body == "rolled back" { TransactionResolution::ROLLBACK } else { TransactionResolution::COMMIT }
    });
    let mut one = Producer::new_transaction_producer(topics(topic), options(address), checker).unwrap();
    one.start().await.unwrap();
    for body in ["commit", "rollback", "checked", "rolled back"] {
        let message = MessageBuilder::transaction_message_builder(topic, body.as_bytes().to_vec()).build().unwrap();
        let transaction = one.send_transaction_message(message).await.unwrap();
        match body {
            "commit" => transaction.commit().await.unwrap(),
            "rollback" => transaction.rollback().await.unwrap(),
            _ => (),
        }
    }
    tokio::time::sleep(Duration::from_secs(wait_s)).await;
}

#[tokio::main]
async fn main() {
    let all: Vec<String> = std::env::args().skip(1).collect();
    let [scenario, address, topic, rest @ ..] = &all[..] else { panic!("SCENARIO ADDRESS TOPIC [ARGUMENT ...]") };
    let at = |index: usize, default: &str| rest.get(index).map_or(default.to_owned(), String::clone);
    let number = |index: usize, default: &str| at(index, default).parse::<u64>().unwrap();
    match scenario.as_str() {
        "send" => send(address, topic, number(0, "0") as usize, number(1, "0") as usize).await,
        "receive" => receive(address, topic, &at(0, "g"), &at(1, "*"), number(2, "60")).await,
        "delay" => delay(address, topic, &at(0, "g"), number(1, "1") as i64).await,
        "transact" => transact(address, topic, number(0, "0")).await,
        _ => panic!("{scenario}"),
    }
}
