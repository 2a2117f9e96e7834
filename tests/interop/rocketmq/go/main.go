// Run the official Go client as lines of JSON say: one command per line in, one answer per line out.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// Command has the arguments of all commands.
type Command struct {
	Do, Topic, Group, Kind, Tag, Expression, Language string
	Count, First, Batch, Delay, Queues, Failures      int
	Deliveries                                        int // of a consumer, with those that fail; 0: until all are done
	PatienceMs                                        int `json:"patience_ms"`
	MaxTries                                          int `json:"max_tries"`
	Orderly, Broadcast, Trace, Tell                   bool
}

// Received is one delivery to a consumer.
type Received struct {
	Body       string            `json:"body"`
	Topic      string            `json:"topic"`
	QueueId    int               `json:"queue_id"`
	Offset     int64             `json:"queue_offset"`
	Tries      int32             `json:"reconsume_times"`
	AtMs       int64             `json:"at_ms"`
	Properties map[string]string `json:"properties"`
}

var names, broker, accessKey, secret string
var instances atomic.Int64

func resolver() primitive.NsResolver { return primitive.NewPassthroughResolver([]string{names}) }

func credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: accessKey, SecretKey: secret}
}

func must[T any](found T, err error) T {
	if err != nil {
		panic(err)
	}
	return found
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func instance() string { return "i" + strconv.FormatInt(instances.Add(1), 10) }

func newProducer(c Command, more ...producer.Option) rocketmq.Producer {
	options := []producer.Option{producer.WithNsResolver(resolver()), producer.WithGroupName("go-" + c.Topic), producer.WithRetry(2),
		producer.WithInstanceName(instance()), producer.WithSendMsgTimeout(20 * time.Second), producer.WithCredentials(credentials())}
	if c.Trace {
		options = append(options, producer.WithTrace(&primitive.TraceConfig{
			GroupName: "go-trace", Access: primitive.Local, Resolver: resolver(), NamesrvAddrs: []string{names}, Credentials: credentials()}))
	}
	found := must(rocketmq.NewProducer(append(options, more...)...))
	check(found.Start())
	return found
}

func message(c Command, number int) *primitive.Message {
	text := strconv.Itoa(number)
	found := primitive.NewMessage(c.Topic, []byte(text)).WithKeys([]string{c.Topic + "-" + text})
	if c.Tag != "" {
		found.WithTag(c.Tag + strconv.Itoa(number%2))
	}
	if c.Delay > 0 {
		found.WithDelayTimeLevel(c.Delay)
	}
	if c.Kind == "ordered" {
		found.WithShardingKey(strconv.Itoa(number % 5))
	}
	return found
}

// send puts messages and returns the numbers that were acknowledged.
func send(c Command) any {
	var more []producer.Option
	if c.Kind == "ordered" {
		more = append(more, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	made := newProducer(c, more...)
	defer made.Shutdown()
	var lock sync.Mutex
	acknowledged := []int{}
	add := func(result *primitive.SendResult, err error, first int, count int) {
		if err != nil || result.Status != primitive.SendOK {
			fmt.Fprintln(os.Stderr, "send", first, err)
			return
		}
		lock.Lock()
		defer lock.Unlock()
		for number := first; number < first+count; number++ {
			acknowledged = append(acknowledged, number)
			if c.Tell {
				fmt.Fprintln(os.Stderr, "acknowledged", number)
			}
		}
	}
	var wait sync.WaitGroup
	for number, step := c.First, max(1, c.Batch); number < c.First+c.Count; number += step {
		switch c.Kind {
		case "async":
			wait.Add(1)
			first := number
			check(made.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
				add(result, err, first, 1)
				wait.Done()
			}, message(c, number)))
		case "oneway":
			check(made.SendOneWay(context.Background(), message(c, number)))
		case "batch":
			all := []*primitive.Message{}
			for each := number; each < min(number+step, c.First+c.Count); each++ {
				all = append(all, message(c, each))
			}
			result, err := made.SendSync(context.Background(), all...)
			add(result, err, number, len(all))
		default:
			result, err := made.SendSync(context.Background(), message(c, number))
			add(result, err, number, 1)
		}
	}
	if c.Kind == "oneway" { // the client does not mark them so: it would close on answers unread, and the system drop what is on its way
		time.Sleep(2 * time.Second)
	}
	wait.Wait()
	sort.Ints(acknowledged)
	return acknowledged
}

func received(one *primitive.MessageExt) Received {
	return Received{string(one.Body), one.Topic, one.Queue.QueueId, one.QueueOffset, one.ReconsumeTimes, time.Now().UnixMilli(), one.GetProperties()}
}

// subscribe lets a push consumer receive until it has acknowledged a number of messages; the first tries of each fail.
func subscribe(c Command) any {
	var lock sync.Mutex
	deliveries, done := []Received{}, 0
	enough := make(chan bool, 1)
	options := []consumer.Option{consumer.WithNsResolver(resolver()), consumer.WithGroupName(c.Group), consumer.WithInstance(instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithConsumerOrder(c.Orderly), consumer.WithCredentials(credentials()),
		consumer.WithConsumeMessageBatchMaxSize(1), consumer.WithSuspendCurrentQueueTimeMillis(50 * time.Millisecond)}
	if c.MaxTries > 0 {
		options = append(options, consumer.WithMaxReconsumeTimes(int32(c.MaxTries)))
	}
	if c.Broadcast {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if c.Trace {
		options = append(options, consumer.WithTrace(&primitive.TraceConfig{
			GroupName: "go-trace", Access: primitive.Local, Resolver: resolver(), NamesrvAddrs: []string{names}, Credentials: credentials()}))
	}
	made := must(rocketmq.NewPushConsumer(options...))
	kind := consumer.TAG
	if c.Language == "SQL92" {
		kind = consumer.SQL92
	}
	tries := map[string]int{}
	check(made.Subscribe(c.Topic, consumer.MessageSelector{Type: kind, Expression: c.Expression},
		func(_ context.Context, all ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			lock.Lock()
			defer lock.Unlock()
			failed := false
			for _, one := range all {
				deliveries = append(deliveries, received(one))
				tries[string(one.Body)]++
				if tries[string(one.Body)] <= c.Failures {
					failed = true
				} else {
					done++
				}
				if len(deliveries) == c.Deliveries || c.Deliveries == 0 && !failed && done == c.Count {
					enough <- true
				}
			}
			if failed && c.Orderly {
				return consumer.SuspendCurrentQueueAMoment, nil
			}
			if failed {
				return consumer.ConsumeRetryLater, nil
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(made.Start())
	select {
	case <-enough:
		time.Sleep(300 * time.Millisecond) // for what comes once too often
	case <-time.After(time.Duration(max(c.PatienceMs, 1000)) * time.Millisecond):
	}
	check(made.Shutdown())
	lock.Lock()
	defer lock.Unlock()
	return deliveries
}

// pull reads each queue to its end.
func pull(c Command) any {
	made := must(rocketmq.NewPullConsumer(consumer.WithNsResolver(resolver()), consumer.WithGroupName(c.Group),
		consumer.WithInstance(instance()), consumer.WithCredentials(credentials())))
	check(made.Subscribe(c.Topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	check(made.Start())
	defer made.Shutdown()
	found := []Received{}
	for queueId := 0; queueId < c.Queues; queueId++ {
		queue := &primitive.MessageQueue{Topic: c.Topic, BrokerName: broker, QueueId: queueId}
		for offset := int64(0); ; {
			result := must(made.PullFrom(context.Background(), queue, offset, 32))
			for _, one := range result.GetMessageExts() {
				found = append(found, received(one))
			}
			if result.Status != primitive.PullFound || result.NextBeginOffset >= result.MaxOffset {
				break
			}
			offset = result.NextBeginOffset
		}
	}
	return found
}

type decider struct {
	lock    sync.Mutex
	checked int
}

func decision(body []byte) primitive.LocalTransactionState {
	switch number, _ := strconv.Atoi(string(body)); {
	case number%10 < 7:
		return primitive.CommitMessageState
	case number%10 < 9:
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (d *decider) ExecuteLocalTransaction(one *primitive.Message) primitive.LocalTransactionState {
	return decision(one.Body)
}

func (d *decider) CheckLocalTransaction(one *primitive.MessageExt) primitive.LocalTransactionState {
	d.lock.Lock()
	defer d.lock.Unlock()
	d.checked++
	return primitive.CommitMessageState
}

// transact sends transactions: seven of ten are committed, two rolled back, and one when the broker asks.
func transact(c Command) any {
	listener := &decider{}
	made := must(rocketmq.NewTransactionProducer(listener, producer.WithNsResolver(resolver()), producer.WithGroupName("go-"+c.Topic),
		producer.WithInstanceName(instance()), producer.WithSendMsgTimeout(20*time.Second), producer.WithCredentials(credentials())))
	check(made.Start())
	defer made.Shutdown()
	for number := 0; number < c.Count; number++ {
		must(made.SendMessageInTransaction(context.Background(), message(c, number)))
	}
	for end := time.Now().Add(time.Duration(c.PatienceMs) * time.Millisecond); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		listener.lock.Lock()
		checked := listener.checked
		listener.lock.Unlock()
		if checked >= c.Count/10 {
			break
		}
	}
	time.Sleep(500 * time.Millisecond)
	return listener.checked
}

// request sends requests that a consumer of the same process answers; the answers are its bodies, in order.
func request(c Command) any {
	replies := newProducer(Command{Topic: c.Topic + "-replies"})
	defer replies.Shutdown()
	made := must(rocketmq.NewPushConsumer(consumer.WithNsResolver(resolver()), consumer.WithGroupName(c.Group), consumer.WithInstance(instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithCredentials(credentials())))
	check(made.Subscribe(c.Topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"},
		func(_ context.Context, all ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, one := range all {
				reply := must(consumer.CreateReplyMessage(one, nil))
				reply.Body = []byte("reply to " + string(one.Body)) // CreateReplyMessage of 2.1.2 leaves it empty
				must(replies.SendSync(context.Background(), reply))
			}
			return consumer.ConsumeSuccess, nil
		}))
	check(made.Start())
	defer made.Shutdown()
	asking := newProducer(c)
	defer asking.Shutdown()
	found := []string{}
	for number := 0; number < c.Count; number++ {
		reply, err := asking.Request(context.Background(), 20*time.Second, message(c, number))
		if err != nil {
			panic(fmt.Errorf("request %d: %w", number, err))
		}
		found = append(found, string(reply.Body))
	}
	return found
}

func withAdmin(c Command) any {
	made := must(admin.NewAdmin(admin.WithResolver(resolver()), admin.WithCredentials(credentials())))
	defer made.Close()
	wait, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	switch c.Do {
	case "topic":
		check(made.CreateTopic(wait, admin.WithTopicCreate(c.Topic), admin.WithBrokerAddrCreate(brokerAddress),
			admin.WithReadQueueNums(c.Queues), admin.WithWriteQueueNums(c.Queues)))
	case "delete_topic":
		check(made.DeleteTopic(wait, admin.WithTopicDelete(c.Topic), admin.WithBrokerAddrDelete(brokerAddress),
			admin.WithNameSrvAddr([]string{names})))
	case "topics":
		return must(made.FetchAllTopicList(wait)).TopicList
	case "groups":
		found := []string{}
		for name := range must(made.GetAllSubscriptionGroup(wait, brokerAddress, 20*time.Second)).SubscriptionGroupTable {
			found = append(found, name)
		}
		return found
	case "queues":
		return len(must(made.FetchPublishMessageQueues(wait, c.Topic)))
	}
	return true
}

var brokerAddress string

func run(c Command) (found any) {
	defer func() {
		if problem := recover(); problem != nil {
			found = map[string]string{"error": fmt.Sprint(problem)}
		}
	}()
	switch c.Do {
	case "send":
		return send(c)
	case "subscribe":
		return subscribe(c)
	case "pull":
		return pull(c)
	case "transact":
		return transact(c)
	case "request":
		return request(c)
	}
	return withAdmin(c)
}

// Arguments: address of the name server, address and name of the broker, and a key and its secret, if it wants them; or those of `scenario`.
func main() {
	rlog.SetOutputPath(os.DevNull)
	if os.Getenv("CLIENT_LOG") != "" {
		rlog.SetOutputPath(os.Getenv("CLIENT_LOG"))
	}
	if os.Args[1] == "produce" || os.Args[1] == "consume" || os.Args[1] == "consume_pulling" {
		names = os.Args[2]
		scenario(os.Args[1], os.Args[3:])
		return
	}
	names, brokerAddress, broker = os.Args[1], os.Args[2], os.Args[3]
	if len(os.Args) > 4 {
		accessKey, secret = os.Args[4], os.Args[5]
	}
	answers := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c Command
		check(json.Unmarshal(lines.Bytes(), &c))
		check(answers.Encode(run(c)))
	}
}
