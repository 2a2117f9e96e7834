package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// Scenarios of `python_client_driver.py` that a server's kills interrupt; they print its JSON lines.

const batchSize, groupCount, delayLevel, delaySeconds = 50, 5, 2, 5

type facts map[string]any

func show(found facts) { os.Stdout.Write(append(must(json.Marshal(found)), '\n')) }

func waitForEndOfInput() { must(io.Copy(io.Discard, os.Stdin)) }

// retried calls a function until it succeeds, while a server is killed and started again.
func retried(call func() error) {
	for call() != nil {
		time.Sleep(200 * time.Millisecond)
	}
}

func sent(result *primitive.SendResult, err error) error {
	if err == nil && result.Status != primitive.SendOK {
		return fmt.Errorf("status %d", result.Status)
	}
	return err
}

func numbered(topic, kind string, number int) *primitive.Message {
	found := primitive.NewMessage(topic, []byte(strconv.Itoa(number)))
	switch kind {
	case "fifo":
		group := "group-" + strconv.Itoa(number%groupCount)
		return found.WithTag(group).WithShardingKey(group)
	case "delay":
		found.Body = []byte(fmt.Sprintf("%d %d", number, time.Now().Unix()+delaySeconds))
		return found.WithDelayTimeLevel(delayLevel)
	}
	return found.WithTag([]string{"even", "odd"}[number%2])
}

// produce sends numbers, each until it is acknowledged; `R` behind a number is rolled back.
func produce(topic, kind string, count int) {
	if kind == "transaction" {
		produceTransactions(topic, count)
		return
	}
	var more []producer.Option
	step := 1
	switch kind {
	case "fifo":
		more = append(more, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	case "batch":
		step = batchSize
	}
	made := newProducer(Command{Topic: topic}, more...)
	for first := 0; first < count; first += step {
		end := min(count, first+step)
		retried(func() error {
			all := []*primitive.Message{}
			for number := first; number < end; number++ {
				all = append(all, numbered(topic, kind, number))
			}
			return sent(made.SendSync(context.Background(), all...))
		})
		for number := first; number < end; number++ {
			show(facts{"sent": number})
		}
	}
}

type quarters struct{}

// ExecuteLocalTransaction commits two of four messages, rolls one back, and leaves one to the check, as a lost decision does.
func (quarters) ExecuteLocalTransaction(one *primitive.Message) primitive.LocalTransactionState {
	number, err := strconv.Atoi(string(one.Body))
	switch {
	case err != nil:
		return primitive.RollbackMessageState
	case number%4 == 3:
		return primitive.UnknowState
	}
	return primitive.CommitMessageState
}

func (quarters) CheckLocalTransaction(one *primitive.MessageExt) primitive.LocalTransactionState {
	show(facts{"checked": string(one.Body)})
	if strings.HasSuffix(string(one.Body), "R") {
		return primitive.RollbackMessageState
	}
	return primitive.CommitMessageState
}

func produceTransactions(topic string, count int) {
	made := must(rocketmq.NewTransactionProducer(quarters{}, producer.WithNsResolver(resolver()),
		producer.WithGroupName("go-"+topic), producer.WithSendMsgTimeout(20*time.Second)))
	check(made.Start())
	for number := 0; number < count; number++ {
		text := strconv.Itoa(number) + map[bool]string{true: "R"}[number%4 == 1]
		retried(func() error {
			result, err := made.SendMessageInTransaction(context.Background(), primitive.NewMessage(topic, []byte(text)))
			if err != nil {
				return err
			}
			return sent(result.SendResult, nil)
		})
		show(facts{"sent": number})
	}
	waitForEndOfInput() // the server asks as long as the test waits
}

// consume runs until the input ends: what ends as `fails` fails each time; group `fifo` in order, group `all` everything.
func consume(topic, group string, tag, fails string) {
	options := []consumer.Option{consumer.WithNsResolver(resolver()), consumer.WithGroupName(group),
		consumer.WithMaxReconsumeTimes(1), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(group == "fifo"),
		consumer.WithInstance(strconv.Itoa(os.Getpid()))}
	if group == "all" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	made := must(rocketmq.NewPushConsumer(options...))
	check(made.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: tag},
		func(wait context.Context, all ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			found := consumer.ConsumeSuccess
			for _, one := range all {
				show(facts{"body": string(one.Body), "group": one.GetTags(), "now_s": float64(time.Now().UnixMilli()) / 1000})
				if strings.HasSuffix(string(one.Body), fails) {
					found = consumer.ConsumeRetryLater
					if context, ok := primitive.GetConcurrentlyCtx(wait); ok {
						context.DelayLevelWhenNextConsume = 1
					}
				}
			}
			return found, nil
		}))
	check(made.Start())
	waitForEndOfInput()
}

func scenario(name string, rest []string) {
	if name == "produce" {
		produce(rest[0], rest[1], must(strconv.Atoi(rest[2])))
	} else {
		consume(rest[0], rest[1], rest[2], rest[3])
	}
}
