package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// Scenarios of `python_client_driver.py` that a server's kills interrupt; they print its JSON lines.

const batchSize, groupCount, delayLevel, delaySeconds = 50, 5, 2, 5
const (
	aheadMax  = 16 // asynchronous messages that wait for their answer
	answerMax = 30 * time.Second
	replyMax  = 5 * time.Second

	killedBroker, killedQueues = "brokerstore", 4 // of the topic `orders`

	oneWayPause = time.Millisecond // so that kills come between them
)

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
func produce(topic, kind string, first, count int) {
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
	switch kind {
	case "async":
		produceAsync(made, topic, count)
		return
	case "oneway":
		produceOneWay(made, topic, count)
		return
	case "ask":
		ask(made, topic, first, count)
		return
	}
	for ; first < count; first += step {
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

// produceAsync sends again what has no good answer; the client may forget a message that it waits for.
func produceAsync(made rocketmq.Producer, topic string, count int) {
	var all sync.WaitGroup
	ahead := make(chan bool, aheadMax)
	for number := 0; number < count; number++ {
		all.Add(1)
		ahead <- true
		go func(number int) {
			retried(func() error {
				answer := make(chan error, 2)
				err := made.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
					answer <- sent(result, err)
					if err != nil {
						runtime.Goexit() // client 2.1.2 would go on with the answer that it lacks, and end the process
					}
				}, numbered(topic, "async", number))
				if err != nil {
					return err
				}
				select {
				case err = <-answer:
				case <-time.After(answerMax):
					err = fmt.Errorf("no answer")
				}
				return err
			})
			show(facts{"sent": number})
			<-ahead
			all.Done()
		}(number)
	}
	all.Wait()
}

// produceOneWay sends again what the client could not hand to a connection; then it sends `count` until that is acknowledged.
func produceOneWay(made rocketmq.Producer, topic string, count int) {
	for number := 0; number < count; number++ {
		retried(func() error {
			err := made.SendOneWay(context.Background(), numbered(topic, "oneway", number))
			if err != nil {
				show(facts{"again": number})
			}
			return err
		})
		show(facts{"sent": number})
		time.Sleep(oneWayPause)
	}
	retried(func() error { return sent(made.SendSync(context.Background(), numbered(topic, "oneway", count))) })
}

// askInChild sends requests from a child process: a request that gets no answer within 3 s ends the process of client 2.1.2.
func askInChild(topic string, count int) {
	for next := 0; next < count; {
		child := exec.Command(os.Args[0], "produce", names, topic, "ask", strconv.Itoa(count), strconv.Itoa(next))
		lines := bufio.NewScanner(must(child.StdoutPipe()))
		check(child.Start())
		for ; lines.Scan(); next++ {
			fmt.Println(lines.Text())
		}
		child.Wait()
	}
}

// ask sends requests one after the other, each until its reply is there.
func ask(made rocketmq.Producer, topic string, first, count int) {
	for number := first; number < count; number++ {
		retried(func() error {
			reply, err := made.Request(context.Background(), replyMax, numbered(topic, "ask", number))
			if err == nil && string(reply.Body) != "re: "+strconv.Itoa(number) {
				panic(fmt.Sprint(number, " is answered with ", string(reply.Body)))
			}
			return err
		})
		show(facts{"sent": number})
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

// selected returns how a consumer filters, by tag or by an SQL92 condition behind `sql:`.
func selected(tag string) consumer.MessageSelector {
	if condition, ok := strings.CutPrefix(tag, "sql:"); ok {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: condition}
	}
	return consumer.MessageSelector{Type: consumer.TAG, Expression: tag}
}

// answer sends the reply to a request.
func answer(replies rocketmq.Producer, one *primitive.MessageExt) error {
	reply := must(consumer.CreateReplyMessage(one, nil))
	reply.Body = []byte("re: " + string(one.Body)) // CreateReplyMessage of 2.1.2 leaves it empty
	return sent(replies.SendSync(context.Background(), reply))
}

// consumePulling pulls each queue from its begin, again and again, until the input ends.
func consumePulling(topic, group string, tag string) {
	made := must(rocketmq.NewPullConsumer(consumer.WithNsResolver(resolver()), consumer.WithGroupName(group),
		consumer.WithInstance(strconv.Itoa(os.Getpid()))))
	check(made.Subscribe(topic, selected(tag)))
	retried(made.Start)
	go func() {
		for offsets := map[int]int64{}; ; time.Sleep(100 * time.Millisecond) {
			for queueId := 0; queueId < killedQueues; queueId++ {
				queue := &primitive.MessageQueue{Topic: topic, BrokerName: killedBroker, QueueId: queueId}
				for status := primitive.PullFound; status == primitive.PullFound; {
					result, err := made.PullFrom(context.Background(), queue, offsets[queueId], 32)
					if err != nil {
						break
					}
					for _, one := range result.GetMessageExts() {
						show(facts{"body": string(one.Body)})
					}
					status, offsets[queueId] = result.Status, result.NextBeginOffset
				}
			}
		}
	}()
	waitForEndOfInput()
}

// consume runs until the input ends: what ends as `fails` fails each time; group `fifo` in order, group `all` everything,
// group `answers` answers requests.
func consume(topic, group string, tag, fails string) {
	options := []consumer.Option{consumer.WithNsResolver(resolver()), consumer.WithGroupName(group),
		consumer.WithMaxReconsumeTimes(1), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(group == "fifo"),
		consumer.WithInstance(strconv.Itoa(os.Getpid()))}
	if group == "all" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	var replies rocketmq.Producer
	if group == "answers" {
		replies = newProducer(Command{Topic: topic + "-replies"})
	}
	made := must(rocketmq.NewPushConsumer(options...))
	check(made.Subscribe(topic, selected(tag),
		func(wait context.Context, all ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			found := consumer.ConsumeSuccess
			for _, one := range all {
				show(facts{"body": string(one.Body), "group": one.GetTags(), "now_s": float64(time.Now().UnixMilli()) / 1000})
				if strings.HasSuffix(string(one.Body), fails) || replies != nil && answer(replies, one) != nil {
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
	switch name {
	case "produce":
		count := must(strconv.Atoi(rest[2]))
		switch {
		case len(rest) > 3:
			produce(rest[0], rest[1], must(strconv.Atoi(rest[3])), count)
		case rest[1] == "ask":
			askInChild(rest[0], count)
		default:
			produce(rest[0], rest[1], 0, count)
		}
	case "consume":
		consume(rest[0], rest[1], rest[2], rest[3])
	case "consume_pulling":
		consumePulling(rest[0], rest[1], rest[2])
	}
}
